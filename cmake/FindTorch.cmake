# Finds libtorch without requiring a CUDA toolkit, as the wheel's own CMake package does.
#
#   TORCH_ROOT    the folder that holds include/ and lib/: an unpacked libtorch, or site-packages/torch.
#                 Default: .deps/libtorch/torch, which tools/setup fills.
#   Torch::torch  libtorch_cpu and libc10; with the component `cuda` libtorch_cuda and libc10_cuda too.
#   Torch::cudart with the component `cuda`, if found: CUDA's runtime, for sources that include <c10/cuda/...>.
#   Torch::cupti  with the component `cuda`, if found: the library that reports the calls of CUDA's runtime.
#   Torch::openmp the OpenMP runtime that libtorch's own threads belong to, for sources compiled with -fopenmp.
#   Torch_VERSION
set(TORCH_ROOT "${PROJECT_SOURCE_DIR}/.deps/libtorch/torch" CACHE PATH "Folder that holds libtorch's include/ and lib/")

# Not cached, so that another TORCH_ROOT does not get the results of the previous one.
set(_torch_hints PATHS "${TORCH_ROOT}" NO_DEFAULT_PATH NO_CACHE)
find_path(Torch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h ${_torch_hints} PATH_SUFFIXES include)
find_library(Torch_CPU_LIBRARY torch_cpu ${_torch_hints} PATH_SUFFIXES lib)
find_library(Torch_C10_LIBRARY c10 ${_torch_hints} PATH_SUFFIXES lib)
find_library(Torch_OPENMP_LIBRARY libgomp.so.1 ${_torch_hints} PATH_SUFFIXES lib)
set(_torch_required Torch_CPU_LIBRARY Torch_C10_LIBRARY Torch_INCLUDE_DIR)

if("cuda" IN_LIST Torch_FIND_COMPONENTS)
  find_library(Torch_CUDA_LIBRARY torch_cuda ${_torch_hints} PATH_SUFFIXES lib)
  find_library(Torch_C10_CUDA_LIBRARY c10_cuda ${_torch_hints} PATH_SUFFIXES lib)
  # The libraries that libtorch loads lie beside the wheel; a libtorch from elsewhere uses those of the
  # toolkit.
  set(_cuda_hints PATHS "${TORCH_ROOT}/../nvidia/cu13" /usr/local/cuda /usr/local/cuda/extras/CUPTI NO_DEFAULT_PATH
                  NO_CACHE)
  foreach(_library IN ITEMS CUDART CUPTI)
    string(TOLOWER ${_library} _name)
    find_library(Torch_${_library}_LIBRARY NAMES lib${_name}.so.13 ${_name} ${_cuda_hints} PATH_SUFFIXES lib lib64)
  endforeach()
  find_path(Torch_CUDA_INCLUDE_DIR cuda_runtime_api.h ${_cuda_hints} PATH_SUFFIXES include)
  find_path(Torch_CUPTI_INCLUDE_DIR cupti.h ${_cuda_hints} PATH_SUFFIXES include)
  list(APPEND _torch_required Torch_CUDA_LIBRARY Torch_C10_CUDA_LIBRARY)
endif()

if(Torch_INCLUDE_DIR)
  file(GLOB_RECURSE _torch_version_files "${Torch_INCLUDE_DIR}/torch/headeronly/version.h"
       "${Torch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h")
  set(_torch_numbers "")
  foreach(_part IN ITEMS MAJOR MINOR PATCH)
    foreach(_file IN LISTS _torch_version_files)
      file(STRINGS "${_file}" _line REGEX "#define TORCH_VERSION_${_part} [0-9]+")
      if(_line MATCHES "([0-9]+)$")
        list(APPEND _torch_numbers ${CMAKE_MATCH_1})
        break()
      endif()
    endforeach()
  endforeach()
  list(JOIN _torch_numbers "." Torch_VERSION)
endif()

set(_torch_reason "Looked in TORCH_ROOT=${TORCH_ROOT}. Run tools/setup (or `make`), or point -DTORCH_ROOT= at an unpacked libtorch or at site-packages/torch of a PyTorch >= ${Torch_FIND_VERSION}.")
if("cuda" IN_LIST Torch_FIND_COMPONENTS AND Torch_CPU_LIBRARY AND NOT Torch_CUDA_LIBRARY)
  set(_torch_reason "The libtorch in TORCH_ROOT=${TORCH_ROOT} has no CUDA, which a Mantissa with CUDA needs. Point -DTORCH_ROOT= at one that has: an unpacked libtorch, or site-packages/torch.")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Torch
  REQUIRED_VARS ${_torch_required}
  VERSION_VAR Torch_VERSION
  REASON_FAILURE_MESSAGE "${_torch_reason}")

if(Torch_FOUND AND NOT TARGET Torch::torch)
  add_library(Torch::c10 SHARED IMPORTED)
  set_target_properties(Torch::c10 PROPERTIES IMPORTED_LOCATION "${Torch_C10_LIBRARY}")
  add_library(Torch::cpu SHARED IMPORTED)
  set_target_properties(Torch::cpu PROPERTIES IMPORTED_LOCATION "${Torch_CPU_LIBRARY}")
  add_library(Torch::torch INTERFACE IMPORTED)
  # For loops on libtorch's threads: the runtime that lies beside libtorch, else the one that it was linked
  # with.
  add_library(Torch::openmp INTERFACE IMPORTED)
  if(Torch_OPENMP_LIBRARY)
    target_link_libraries(Torch::openmp INTERFACE "${Torch_OPENMP_LIBRARY}")
  else()
    target_link_options(Torch::openmp INTERFACE -fopenmp)
  endif()
  # The wheel's own libgomp must be found before the compiler's, because two OpenMP runtimes would spin
  # against each other. It lies in libtorch's folder, so the run path that CMake writes for libtorch_cpu
  # already leads there.
  target_link_libraries(Torch::torch INTERFACE Torch::cpu Torch::c10)
  target_include_directories(Torch::torch INTERFACE "${Torch_INCLUDE_DIR}"
                                                    "${Torch_INCLUDE_DIR}/torch/csrc/api/include")
  if("cuda" IN_LIST Torch_FIND_COMPONENTS)
    # None of our symbols refers to libtorch_cuda, which registers its kernels when it is loaded. The linker
    # must keep it.
    target_link_libraries(
      Torch::torch INTERFACE -Wl,--no-as-needed "${Torch_CUDA_LIBRARY}" "${Torch_C10_CUDA_LIBRARY}" -Wl,--as-needed)
    # The libraries that it loads itself need not be present to compile and link.
    target_link_options(Torch::torch INTERFACE -Wl,--allow-shlib-undefined)
    if(Torch_CUDART_LIBRARY AND Torch_CUDA_INCLUDE_DIR)
      add_library(Torch::cudart INTERFACE IMPORTED)
      target_link_libraries(Torch::cudart INTERFACE "${Torch_CUDART_LIBRARY}")
      target_include_directories(Torch::cudart SYSTEM INTERFACE "${Torch_CUDA_INCLUDE_DIR}")
    endif()
    if(TARGET Torch::cudart AND Torch_CUPTI_LIBRARY AND Torch_CUPTI_INCLUDE_DIR)
      add_library(Torch::cupti INTERFACE IMPORTED)
      target_link_libraries(Torch::cupti INTERFACE "${Torch_CUPTI_LIBRARY}" Torch::cudart)
      target_include_directories(Torch::cupti SYSTEM INTERFACE "${Torch_CUPTI_INCLUDE_DIR}")
    endif()
  endif()
endif()
