// The only source that nvcc compiles. It checks that nvcc's code runs on this device, in libtorch's stream
// and memory.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <vector>

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include "mantissa/core/device.h"

namespace mantissa::cuda_build_test {
namespace {

/// Reports the architecture for which this code was compiled, and whether it has Hopper's own instructions.
__global__ void report_architecture(int* architecture, int* has_hoppers_own) {
#ifdef __CUDA_ARCH__
  *architecture = __CUDA_ARCH__;
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  *has_hoppers_own = 1;
#endif
}

TEST(CudaBuild, HasCodeForTheDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  if (std::vector<int>{__CUDA_ARCH_LIST__} != std::vector<int>{800, 900})
    GTEST_SKIP() << "compiled for other architectures than sm_80 and sm_90a";
  cudaDeviceProp device{};
  ASSERT_EQ(cudaGetDeviceProperties(&device, /*device=*/0), cudaSuccess);
  if (device.major < 8)
    GTEST_SKIP() << "compiled for sm_80 and newer, and this GPU is sm_" << device.major << device.minor;
  const at::Tensor told = at::zeros({2}, at::device(at::Device(at::kCUDA, 0)).dtype(at::kInt));
  report_architecture<<<1, 1, 0, c10::cuda::getCurrentCUDAStream()>>>(told.mutable_data_ptr<int>(),
                                                                    told.mutable_data_ptr<int>() + 1);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  const bool is_hopper = device.major == 9 && device.minor == 0;
  EXPECT_EQ(told[0].item<int>(), is_hopper ? 900 : 800);
  EXPECT_EQ(told[1].item<int>(), is_hopper);
}

}  // namespace
}  // namespace mantissa::cuda_build_test
