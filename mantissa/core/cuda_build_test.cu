// Compiled by nvcc: that what it makes runs on the device that is here, in libtorch's stream and memory.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include "mantissa/core/device.h"

namespace mantissa::cuda_build_test {
namespace {

/// For which architecture this code was compiled, and whether with the instructions that only Hopper has.
__global__ void tell_architecture(int* architecture, int* has_hoppers_own) {
#ifdef __CUDA_ARCH__
  *architecture = __CUDA_ARCH__;
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  *has_hoppers_own = 1;
#endif
}

TEST(CudaBuild, HasCodeForTheDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Tensor told = at::zeros({2}, at::device(at::kCUDA).dtype(at::kInt));
  tell_architecture<<<1, 1, 0, c10::cuda::getCurrentCUDAStream()>>>(told.mutable_data_ptr<int>(),
                                                                    told.mutable_data_ptr<int>() + 1);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  cudaDeviceProp device{};
  ASSERT_EQ(cudaGetDeviceProperties(&device, told.get_device()), cudaSuccess);
  const bool is_hopper = device.major == 9 && device.minor == 0;
  EXPECT_EQ(told[0].item<int>(), is_hopper ? 900 : 800);
  EXPECT_EQ(told[1].item<int>(), is_hopper);
}

}  // namespace
}  // namespace mantissa::cuda_build_test
