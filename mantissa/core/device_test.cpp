#include "mantissa/core/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

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
  EXPECT_THAT(error_of("cpu:1"), testing::HasSubstr("'cpu:1' was asked for, but there is only one CPU"));
}

TEST(ResolveDevice, AutoTakesTheGpuWhereThereIsOne) {
  EXPECT_EQ(resolve_device("auto").is_cuda(), cuda_device_count() > 0);
  EXPECT_EQ(resolve_device("cpu"), at::Device(at::kCPU));
  EXPECT_EQ(resolve_device("cpu:0"), at::Device(at::kCPU));
}

TEST(ResolveDevice, AutoSaysWhyNoGpuIsUsedWhereCudaIsLinked) {
  const Warnings warnings;
  resolve_device("auto");
  if (at::CUDAHooksRegistry()->Has("CUDAHooks") && cuda_device_count() == 0) {
    EXPECT_THAT(warnings.texts,
                testing::ElementsAre("no GPU can be used: " + why_no_cuda() + "; computing on the CPU"));
  } else {
    EXPECT_THAT(warnings.texts, testing::IsEmpty());
  }
}

TEST(ResolveDevice, GpuIsCuda) {
  if (cuda_device_count() > 0) {
    EXPECT_EQ(resolve_device("gpu"), at::Device(at::kCUDA, 0));
    EXPECT_EQ(resolve_device("gpu:0"), at::Device(at::kCUDA, 0));
  } else {
    for (const char* name : {"gpu", "gpu:1"}) EXPECT_THAT(error_of(name), testing::HasSubstr(why_no_cuda()));
  }
  EXPECT_THAT(error_of("gpu:"), testing::HasSubstr("is not a device name"));
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

TEST(PeakMemory, WithoutAGpuIsAnErrorThatSaysWhy) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  const auto says_why = testing::ThrowsMessage<c10::ValueError>(testing::HasSubstr(why_no_cuda()));
  EXPECT_THAT([] { peak_memory_bytes(at::kCUDA); }, says_why);
  EXPECT_THAT([] { reset_peak_memory(at::Device(at::kCUDA, 0)); }, says_why);
}

TEST(PeakMemory, CudaCountsTheAllocator) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const auto touched = torch::ones({64, 1024, 1024}, at::device(at::kCUDA).dtype(at::kFloat));
  EXPECT_GE(peak_memory_bytes(at::kCUDA), int64_t{256} << 20);
}

}  // namespace
}  // namespace mantissa::device_test
