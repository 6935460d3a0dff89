include(GoogleTest)

# mantissa_pch(<name> <headers>... [LIBS <targets>...]): makes a precompiled header for mantissa_use_pch(), to
# be used by any number of targets with the same compile options. Sources still include what they use, because
# clang-tidy compiles without it.
function(mantissa_pch name)
  if(MANTISSA_PCH)
    cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
    add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/empty.cpp)
    target_link_libraries(${name} PRIVATE Torch::torch mantissa_warnings ${ARG_LIBS})
    target_precompile_headers(${name} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
  endif()
endfunction()

function(mantissa_use_pch target name)
  if(MANTISSA_PCH)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

# mantissa_room(<room> [MODULES] DEPENDS <rooms>... SOURCES <files>... HEADERS <public headers>... [LIBS <targets>...])
# A room is one folder and one static library, mantissa::<room>. DEPENDS defines the architecture: a call in
# the wrong direction fails at link time, and tools/check_arrows.py reads the same line. MODULES means that
# most sources of the room include torch::nn or torch::optim, so that the precompiled header pays.
function(mantissa_room room)
  cmake_parse_arguments(ARG "MODULES" "" "DEPENDS;SOURCES;HEADERS;LIBS" ${ARGN})
  add_library(mantissa_${room} STATIC ${ARG_SOURCES})
  add_library(mantissa::${room} ALIAS mantissa_${room})
  if(ARG_MODULES)
    mantissa_use_pch(mantissa_${room} mantissa_module_pch)
  endif()
  set_target_properties(mantissa_${room} PROPERTIES EXPORT_NAME ${room} VERIFY_INTERFACE_HEADER_SETS ON)
  target_sources(mantissa_${room} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  list(TRANSFORM ARG_DEPENDS PREPEND mantissa::)
  target_compile_features(mantissa_${room} PUBLIC cxx_std_20)
  target_link_libraries(mantissa_${room} PUBLIC Torch::torch ${ARG_DEPENDS} PRIVATE ${ARG_LIBS})
  target_link_libraries(mantissa_${room} PRIVATE $<BUILD_INTERFACE:mantissa_warnings>)
  set_property(GLOBAL APPEND PROPERTY MANTISSA_ROOMS mantissa_${room})
endfunction()

# mantissa_parallel(<room> <sources>...): enables OpenMP for the sources that call at::parallel_for(), which
# otherwise runs serially. They do not use the precompiled header, because it is compiled without OpenMP. Where there
# is none, the whole room has OpenMP, so that these sources share a unit with the others.
function(mantissa_parallel room)
  if(MANTISSA_PCH)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -fopenmp SKIP_PRECOMPILE_HEADERS ON)
  else()
    target_compile_options(mantissa_${room} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  endif()
  target_link_libraries(mantissa_${room} PRIVATE Torch::openmp)
endfunction()

# mantissa_test_suites(<program> <label>): makes each suite of a GoogleTest program a ctest test,
# <label>.<suite>.
function(mantissa_test_suites program label)
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${program}_suites.cmake)
  file(GENERATE OUTPUT ${script} CONTENT
"set(PROGRAM [==[$<TARGET_FILE:${program}>]==])
set(LISTING [==[${CMAKE_CURRENT_BINARY_DIR}/${program}_suites.txt]==])
set(LABEL ${label})
include([==[${PROJECT_SOURCE_DIR}/cmake/AddTestSuites.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

# mantissa_travels(<programs>...): tools/pack packs these programs for a machine that has only PyTorch.
function(mantissa_travels)
  set_property(GLOBAL APPEND PROPERTY MANTISSA_TRAVELS ${ARGN})
endfunction()

# mantissa_test(<room> <sources>... [LIBS <targets>...]): adds one GoogleTest program that links only this
# room.
function(mantissa_test room)
  if(NOT MANTISSA_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  add_executable(${room}_test ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${room}_test PRIVATE mantissa::${room} mantissa_warnings mantissa_test_flags
                                             GTest::gtest GTest::gmock GTest::gtest_main ${ARG_LIBS})
  mantissa_use_pch(${room}_test mantissa_test_pch)
  mantissa_test_suites(${room}_test ${room})
  mantissa_travels(${room}_test)
endfunction()

# mantissa_test_data(<files>...): copies files that tests read to testdata/ beside the programs; tools/pack
# packs them, too.
function(mantissa_test_data)
  foreach(file ${ARGN})
    cmake_path(GET file FILENAME name)
    configure_file(${file} ${PROJECT_BINARY_DIR}/testdata/${name} COPYONLY)
  endforeach()
endfunction()

# mantissa_bench(<room> <sources>...): adds one Google Benchmark program, built by `make bench`.
function(mantissa_bench room)
  if(NOT MANTISSA_BENCH)
    return()
  endif()
  add_executable(${room}_bench ${ARGN})
  target_link_libraries(${room}_bench PRIVATE mantissa::${room} mantissa_warnings benchmark::benchmark_main)
  # Each source is a separate program except for main(), and may reuse names of other sources.
  set_target_properties(${room}_bench PROPERTIES UNITY_BUILD OFF)
  add_dependencies(benchmarks ${room}_bench)
endfunction()
