# Finds what CUDA sources need beyond libtorch: the runtime with its headers, and nvcc.
if(NOT TARGET Torch::cupti)
  message(FATAL_ERROR "MANTISSA_CUDA=ON needs CUDA's runtime and CUPTI with their headers, and neither ${TORCH_ROOT}/../nvidia/cu13 "
                      "nor /usr/local/cuda has them: unset TORCH_ROOT, so that tools/setup fetches them, or install the CUDA toolkit")
endif()
# The nvcc of CUDACXX or CMAKE_CUDA_COMPILER, else the one that tools/setup has downloaded.
set(_nvcc ${PROJECT_SOURCE_DIR}/.deps/nvcc/nvidia/cu13/bin/nvcc)
if(NOT DEFINED CMAKE_CUDA_COMPILER AND "$ENV{CUDACXX}" STREQUAL "")
  if(NOT EXISTS ${_nvcc})
    message(FATAL_ERROR "MANTISSA_CUDA=ON needs CUDA's compiler: run tools/setup --nvcc, or set CUDACXX to an nvcc >= 13.0")
  endif()
  set(CMAKE_CUDA_COMPILER ${_nvcc})
endif()
# Machine code for the A100's generation and for Hopper with its own instructions. Other GPUs use the PTX of
# sm_80.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # libtorch's own: Torch::cudart
enable_language(CUDA)
# CMake 3.25 does not know these options yet.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
