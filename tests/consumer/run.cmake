# Installs the build into a scratch prefix, then configures, builds and runs the consumer against it.
set(prefix ${BUILD}/consumer/prefix)
set(build ${BUILD}/consumer/build)
file(REMOVE_RECURSE ${BUILD}/consumer)
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status)
  if(status)
    message(FATAL_ERROR "failed (${status}): ${ARGV}")
  endif()
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${build} -D CMAKE_PREFIX_PATH=${prefix} -D TORCH_ROOT=${TORCH_ROOT}
    -D CMAKE_CXX_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${build})
run(${build}/consumer)
run(${prefix}/bin/mantissa --version)

# TORCH_ROOT may be the folder above libtorch, also as an environment variable; an option takes precedence.
file(MAKE_DIRECTORY ${BUILD}/consumer/above)
file(CREATE_LINK ${TORCH_ROOT} ${BUILD}/consumer/above/torch SYMBOLIC)
function(expect_torch library)
  run(${CMAKE_COMMAND} -E env ${ARGN} -G Ninja -S ${SOURCE} -B ${build}-torch --fresh -D CMAKE_PREFIX_PATH=${prefix}
      -D CMAKE_CXX_COMPILER=${COMPILER})
  file(READ ${build}-torch/build.ninja rules)
  string(FIND "${rules}" "${library}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${ARGN}: '${library}' is not linked")
  endif()
endfunction()
expect_torch(${BUILD}/consumer/above/torch/lib/ TORCH_ROOT=${BUILD}/consumer/above ${CMAKE_COMMAND})
expect_torch(${TORCH_ROOT}/lib/ TORCH_ROOT=${BUILD}/absent ${CMAKE_COMMAND} -D TORCH_ROOT=${TORCH_ROOT})

# A libtorch of another release than that of the archives is refused when the project is configured.
set(other ${BUILD}/consumer/other)
file(WRITE ${other}/include/torch/csrc/api/include/torch/torch.h "")
file(WRITE ${other}/include/torch/headeronly/version.h
     "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 99\n#define TORCH_VERSION_PATCH 3\n")
foreach(library IN ITEMS libtorch_cpu.so libc10.so)
  file(MAKE_DIRECTORY ${other}/lib)
  file(CREATE_LINK ${TORCH_ROOT}/lib/${library} ${other}/lib/${library} SYMBOLIC)
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${build}-other --fresh -D CMAKE_PREFIX_PATH=${prefix}
                        -D TORCH_ROOT=${other} -D CMAKE_CXX_COMPILER=${COMPILER}
                RESULT_VARIABLE status ERROR_VARIABLE error)
string(REGEX REPLACE "[ \n]+" " " error "${error}")  # CMake breaks lines where it likes
foreach(part IN ITEMS "was built with libtorch ${TORCH_VERSION}," "TORCH_ROOT=${other} holds libtorch 2.99.3."
                      "Point -DTORCH_ROOT= at a libtorch ${TORCH_VERSION}, or build Mantissa anew")
  string(FIND "${error}" "${part}" place)
  if(NOT status OR place EQUAL -1)
    message(FATAL_ERROR "libtorch 2.99.3 was not refused with '${part}' (status ${status}): ${error}")
  endif()
endforeach()

# A libtorch without CUDA is refused if CUDA is requested, as by the package of a Mantissa with CUDA. The
# message is for its user.
file(WRITE ${BUILD}/consumer/find_cuda.cmake "cmake_minimum_required(VERSION 3.25)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
list(APPEND CMAKE_MODULE_PATH ${SOURCE}/../../cmake)
find_package(Torch 2.11 REQUIRED COMPONENTS cuda)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -D TORCH_ROOT=${other} -P ${BUILD}/consumer/find_cuda.cmake
                RESULT_VARIABLE status ERROR_VARIABLE error)
string(REGEX REPLACE "[ \n]+" " " error "${error}")
string(FIND "${error}" "The libtorch in TORCH_ROOT=${other} has no CUDA" place)
if(NOT status OR place EQUAL -1)
  message(FATAL_ERROR "a libtorch without CUDA was not refused (status ${status}): ${error}")
endif()
