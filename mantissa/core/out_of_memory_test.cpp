#include "mantissa/core/out_of_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

#include "mantissa/core/device.h"

namespace mantissa::out_of_memory_test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

c10::Error error_of(const char* message) { return {{__func__, __FILE__, __LINE__}, message}; }

TEST(OutOfMemory, KnowsTheErrorsOfGpusAndOfTheCpu) {
  EXPECT_TRUE(is_out_of_memory(c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory.")));
  EXPECT_TRUE(is_out_of_memory(error_of("CUDA out of memory. Tried to allocate 2.00 GiB."))) << "of a child";
  EXPECT_TRUE(is_out_of_memory(error_of("CUDA error: out of memory")));
  EXPECT_TRUE(
      is_out_of_memory(error_of("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")));
  EXPECT_FALSE(is_out_of_memory(error_of("the file mentions memory")));
  try {
    torch::empty({std::numeric_limits<int64_t>::max() / 8});
    FAIL() << "there is no machine with 4 EiB";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.msg();
  }
}

TEST(OutOfMemory, ReportsTheMachinesMemoryAndTheProcesss) {
  EXPECT_THAT(
      describe_memory(at::kCPU),
      ContainsRegex("^the machine has [1-9][0-9.]* [MG]iB, and this process took [1-9][0-9.]* [MG]iB at its "
                    "peak$"));
  EXPECT_EQ(fragmentation_cure(at::kCPU), "");
}

TEST(OutOfMemoryCuda, ReportsWhatTheAllocatorHolds) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Device device(at::kCUDA, 0);
  reset_peak_memory(device);
  {
    const at::Tensor held = torch::empty({3, 1 << 30}, at::device(device).dtype(at::kByte));
    EXPECT_EQ(fragmentation_cure(device), "");
  }
  EXPECT_THAT(describe_memory(device), HasSubstr("its tensors took 3072 MiB at their peak"));
  EXPECT_THAT(describe_memory(device), HasSubstr("cuda:0 has "));
  reset_peak_memory(device);  // everything that the allocator still holds is now unused
  EXPECT_THAT(fragmentation_cure(device), HasSubstr("expandable_segments:True"));
  try {
    torch::empty({1 << 20, 1 << 30}, at::device(device).dtype(at::kByte));
    FAIL() << "there is no GPU with 1 PiB";
  } catch (const c10::Error& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.msg();
  }
}

}  // namespace
}  // namespace mantissa::out_of_memory_test
