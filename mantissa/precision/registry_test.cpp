#include "mantissa/precision/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Registry, ERR01_RefusesUnknownNamesWithTheListAndTheNearest) {
  for (const std::string name :
       {"8", "1", "12", "mixed", "fp16", "bfloat16", "BF16", "true", "", "32.0", "16-Mixed"}) {
    const std::string error = error_of([&] { make_precision(name, at::kCPU); });
    EXPECT_THAT(error, testing::HasSubstr("precision '" + name + "' is not a mode"));
    EXPECT_THAT(error,
                testing::HasSubstr(
                    "allowed: 32-true, 64-true, 16-mixed, bf16-mixed, 16-true, bf16-true, 32, 64, 16, bf16"));
  }
  EXPECT_THAT(error_of([] { make_precision("BF16-mixed", at::kCPU); }),
              testing::HasSubstr("did you mean 'bf16-mixed'?"));
  EXPECT_THAT(error_of([] { make_precision(8, at::kCPU); }), testing::HasSubstr("'8'"));
}

TEST(Registry, TakesEveryAliasAndNumber) {
  EXPECT_EQ(make_precision("32", at::kCPU)->name(), "32-true");
  EXPECT_EQ(make_precision("64", at::kCPU)->name(), "64-true");
  EXPECT_EQ(make_precision("16", at::kCPU)->name(), "16-mixed");
  EXPECT_EQ(make_precision("bf16", at::kCPU)->name(), "bf16-mixed");
  EXPECT_EQ(make_precision(16, at::kCPU)->name(), "16-mixed");
  EXPECT_EQ(make_precision(32, at::kCPU)->name(), "32-true");
  EXPECT_EQ(make_precision(64, at::kCPU)->name(), "64-true");
}

TEST(Registry, EveryRowMakesTheModeItNames) {
  for (const Mode& mode : modes()) {
    EXPECT_EQ(make_precision(mode.name, at::kCPU)->name(), mode.name);
    EXPECT_FALSE(mode.summary.empty());
    EXPECT_FALSE(mode_support(mode, at::kCPU).reason.empty());
  }
}

TEST(Registry, OnlyHistoricalAliasesWarn) {
  struct Counter : c10::WarningHandler {
    void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
    std::vector<std::string> messages;
  } counter;
  c10::WarningUtils::WarningHandlerGuard guard(&counter);
  for (const std::string name : {"32", "64", "32-true", "16-mixed"}) find_mode(name);
  EXPECT_TRUE(counter.messages.empty());
  find_mode("16");
  find_mode("bf16");
  EXPECT_THAT(counter.messages,
              testing::ElementsAre(testing::HasSubstr("'16-mixed'"), testing::HasSubstr("'bf16-mixed'")));
}

TEST(Registry, NamesTheMissingDevice) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_THAT(error_of([] { make_precision("16-mixed", at::kCUDA); }),
              testing::HasSubstr("cannot run on cuda"));
}

}  // namespace
}  // namespace mantissa
