#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/core/cuda_driver_internal.h"
#include "mantissa/core/test_support_internal.h"

namespace mantissa::cuda_driver_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Asks testdata/fake_cuda_driver.cpp, whose answers the arguments set.
CudaDriver fake_driver(const char* version, const char* status) {
  setenv("FAKE_CUDA_VERSION", version, 1);
  setenv("FAKE_CUDA_STATUS", status, 1);
  return ask_cuda_driver(test_data("libfake_cuda_driver.so").c_str());
}

std::string why(const CudaDriver& driver, const char* visible_devices = nullptr) {
  return why_driver_has_no_device(driver, 13000, visible_devices);
}

TEST(NvidiaDriver, ThatIsMissingIsNamedWithTheCure) {
  const CudaDriver driver = ask_cuda_driver("libno_such_driver.so.1");
  EXPECT_FALSE(driver.is_loaded);
  EXPECT_THAT(why(driver),
              AllOf(HasSubstr("driver is missing"), HasSubstr("580 or newer"), HasSubstr("--gpus all")));
}

TEST(NvidiaDriver, ThatIsTooOldIsNamedWithBothVersions) {
  const CudaDriver driver = fake_driver("12080", "0");
  EXPECT_TRUE(driver.is_loaded);
  EXPECT_EQ(driver.version, 12080);
  EXPECT_THAT(why(driver),
              AllOf(HasSubstr("CUDA up to 12.8"), HasSubstr("needs 13.0"), HasSubstr("580 or newer")));
}

TEST(NvidiaDriver, OfAnOlderMinorVersionIsNotTooOld) {
  EXPECT_THAT(why_driver_has_no_device(fake_driver("13000", "0"), 13010, nullptr), HasSubstr("finds no GPU"));
}

TEST(NvidiaDriver, ThatDoesNotStartGivesItsOwnError) {
  EXPECT_THAT(why(fake_driver("13000", "803")),
              AllOf(HasSubstr("CUDA_ERROR_FAKE_803"), HasSubstr("restart the machine")));
}

TEST(NvidiaDriver, WithoutADeviceReportsWhatHidesIt) {
  const CudaDriver driver = fake_driver("13000", "100");
  EXPECT_EQ(driver.status, 100);
  EXPECT_THAT(why(driver), HasSubstr("finds no GPU: check that nvidia-smi"));
  EXPECT_THAT(why(driver, "7"), AllOf(HasSubstr("CUDA_VISIBLE_DEVICES is '7'"), HasSubstr("nvidia-smi -L")));
}

TEST(NvidiaDriver, NamesTheComputeCapabilityOfADevice) {
  const std::string library = test_data("libfake_cuda_driver.so");
  fake_driver("13000", "0");
  EXPECT_EQ(cuda_compute_capability(0, library.c_str()), 86);
  EXPECT_EQ(cuda_compute_capability(1, library.c_str()), 0) << "no such device";
  EXPECT_EQ(cuda_device_name(0, library.c_str()), "Fake GPU");
  EXPECT_EQ(cuda_device_name(1, library.c_str()), "") << "no such device";
  EXPECT_EQ(cuda_compute_capability(0, "libno_such_driver.so.1"), 0);
  fake_driver("13000", "100");
  EXPECT_EQ(cuda_compute_capability(0, library.c_str()), 0) << "a driver without devices";
}

}  // namespace
}  // namespace mantissa::cuda_driver_test
