#include "mantissa/core/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa::device_test {
namespace {

std::string error_of(const std::string& device) {
  try {
    resolve_device(device);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(ResolveDevice, RefusesWhatIsNoDeviceAndSaysTheChoices) {
  EXPECT_THAT(error_of("gpu0"), testing::HasSubstr("'gpu0' is not a device name; choose auto, cpu"));
  EXPECT_THAT(error_of(""), testing::HasSubstr("choose auto"));
  EXPECT_THAT(error_of("meta"), testing::HasSubstr("'meta' is not supported"));
}

TEST(ResolveDevice, AutoTakesTheGpuWhereThereIsOne) {
  EXPECT_EQ(resolve_device("auto").is_cuda(), cuda_device_count() > 0);
  EXPECT_EQ(resolve_device("cpu"), at::Device(at::kCPU));
}

TEST(ResolveDevice, NamesTheMissingGpu) {
  if (cuda_device_count() > 0) {
    EXPECT_THAT(error_of("cuda:99"), testing::HasSubstr("numbered from 0"));
  } else {
    EXPECT_THAT(error_of("cuda:1"), testing::HasSubstr(why_no_cuda()));
  }
}

TEST(FormatSupport, SaysHowAndWhy) {
  EXPECT_EQ(format_support(at::kCPU, Format::kFloat32).support, FormatSupport::kNative);
  for (const Format format : {Format::kBFloat16, Format::kTF32}) {
    const auto support = format_support(at::kCPU, format);
    EXPECT_NE(support.support, FormatSupport::kUnavailable);
    EXPECT_FALSE(support.reason.empty());
  }
  EXPECT_EQ(format_support(at::kCPU, Format::kNF4).support, FormatSupport::kUnavailable);
  EXPECT_EQ(format_support(at::kCPU, Format::kNF4).reason, "no CPU kernels for nf4");
  if (cuda_device_count() == 0) {
    for (const Format format : {Format::kFloat32, Format::kTF32})
      EXPECT_EQ(format_support(at::kCUDA, format).support, FormatSupport::kUnavailable);
  }
}

TEST(PeakMemory, CountsWhatWasTouched) {
  const int64_t before = peak_memory_bytes(at::kCPU);
  const auto touched = torch::ones({64, 1024, 1024}, at::kFloat);  // 256 MiB
  EXPECT_GE(peak_memory_bytes(at::kCPU), int64_t{256} << 20);
  EXPECT_GE(peak_memory_bytes(at::kCPU), before);
}

TEST(PeakMemory, CudaCountsTheAllocator) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const auto touched = torch::ones({64, 1024, 1024}, at::device(at::kCUDA).dtype(at::kFloat));
  EXPECT_GE(peak_memory_bytes(at::kCUDA), int64_t{256} << 20);
}

}  // namespace
}  // namespace mantissa::device_test
