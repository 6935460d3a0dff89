# ctest runs this before it reads its tests: it adds one test for each suite of a GoogleTest program. There is
# not one test for each test case, because loading libtorch takes a quarter of a second, longer than most test
# cases. Inputs: PROGRAM, LABEL (a test is called LABEL.SUITE), LISTING (the file that stores the program's
# list of tests).
if("${PROGRAM}" IS_NEWER_THAN "${LISTING}")  # true also if one of the two is missing
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
  # A suite is skipped if none of its tests ran and none failed. Failures would be listed after the skipped
  # tests.
  set_tests_properties("${LABEL}.${suite}" PROPERTIES TIMEOUT 1800 LABELS ${LABEL} SKIP_REGULAR_EXPRESSION
    "PASSED  \\] 0 tests\\.\n\\[  SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\] [^\n]*\n)*$")
endforeach()
