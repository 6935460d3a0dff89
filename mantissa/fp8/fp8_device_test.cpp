#include "mantissa/fp8/fp8_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::fp8::fp8_device_test {
namespace {

using testing::HasSubstr;

bool is_native(int capability, const Fp8Recipe& recipe) {
  return fp8_support_of_capability(capability, recipe).support == FormatSupport::kNative;
}

TEST(Fp8Device, NativeRecipesDependOnTheComputeCapability) {
  for (const Fp8Recipe& recipe : {Fp8Recipe(DelayedScaling()), Fp8Recipe(Float8CurrentScaling())}) {
    for (const int capability : {75, 80, 86, 0}) EXPECT_FALSE(is_native(capability, recipe)) << capability;
    for (const int capability : {89, 90, 100, 120}) EXPECT_TRUE(is_native(capability, recipe)) << capability;
  }
  for (const int capability : {89, 90, 100, 120}) {
    EXPECT_EQ(is_native(capability, Float8BlockScaling()), capability == 90) << capability;
    EXPECT_EQ(is_native(capability, MXFP8BlockScaling()), capability == 100) << capability;
    EXPECT_FALSE(is_native(capability, NVFP4BlockScaling())) << capability;
  }
  EXPECT_THAT(fp8_support_of_capability(86, DelayedScaling()).reason,
              HasSubstr("sm_86 has no tensor cores for FP8"));
}

TEST(Fp8Device, F8_50_RequiredNativeProductsAreRefusedOnTheCpuBeforeAnyWork) {
  const auto state = state_of(DelayedScaling{.amax_history_len = 4});
  state->set_native(Fp8Native::kRequired);
  const at::Tensor x = torch::ones({16, 16});
  EXPECT_THAT(
      error_of([&] { linear_fp8(x, x, {}, state); }),
      testing::AllOf(HasSubstr("linear_fp8: fp8_native is required, but cpu cannot"),
                     HasSubstr("choose fp8_native auto or off"), HasSubstr("compute capability 8.9")));
  EXPECT_TRUE(state->forward.amax_history.eq(0).all().item<bool>());
  for (const Fp8Native native : {Fp8Native::kAuto, Fp8Native::kOff}) {
    state->set_native(native);
    EXPECT_EQ(linear_fp8(x, x, {}, state)[0][0].item<float>(), 16);
  }
}

TEST(Fp8Device, NamesAreThoseOfTheOption) {
  EXPECT_EQ(fp8_native_of("required"), Fp8Native::kRequired);
  EXPECT_EQ(fp8_native_of("off"), Fp8Native::kOff);
  EXPECT_THAT(error_of([] { fp8_native_of("on"); }), HasSubstr("got 'on'; use auto, required or off"));
}

TEST(Fp8Device, TensorsOfOneProductAreOnOneDevice) {
  const auto state = state_of(Float8CurrentScaling());
  EXPECT_THAT(error_of([&] {
                linear_fp8(torch::ones({16, 16}), torch::ones({16, 16}, at::kMeta), {}, state);
              }),
              HasSubstr("the input is on cpu, the weight on meta; move them to one device"));
}

}  // namespace
}  // namespace mantissa::fp8::fp8_device_test
