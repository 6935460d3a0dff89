# Run by ctest before it looks at its tests: one test for each suite of a GoogleTest program. Not one for each test: loading
# libtorch takes a quarter of a second, which most of the tests themselves do not.
# In: PROGRAM, LABEL (LABEL.SUITE is a test's name), LISTING (the file that keeps what the program has).
if("${PROGRAM}" IS_NEWER_THAN "${LISTING}")  # also where one of the two is not there
  execute_process(COMMAND "${PROGRAM}" --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE failure)
  if(failure)
    add_test("${LABEL}.lists_its_tests" "${PROGRAM}" --gtest_list_tests)
    return()
  endif()
  file(WRITE "${LISTING}" "${listing}")
endif()
file(STRINGS "${LISTING}" suites REGEX "^[A-Za-z0-9_/]+\\.( |$)")
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "\\..*" "" suite "${suite}")
  add_test("${LABEL}.${suite}" "${PROGRAM}" "--gtest_filter=${suite}.*")
  # Skipped is a suite of which nothing ran and nothing failed, which would be listed after the skipped ones.
  set_tests_properties("${LABEL}.${suite}" PROPERTIES TIMEOUT 1800 LABELS ${LABEL} SKIP_REGULAR_EXPRESSION
    "PASSED  \\] 0 tests\\.\n\\[  SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\] [^\n]*\n)*$")
endforeach()
