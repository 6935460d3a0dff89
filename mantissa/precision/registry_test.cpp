#include "mantissa/precision/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/precision/scaled.h"

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
                    "allowed: 32-true, 64-true, 16-mixed, bf16-mixed, 16-true, bf16-true, 32, 64, 16, bf16, "
                    "O0, O1, O2, O3"));
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

TEST(Registry, ERR08_On16MixedTheCpuRunsFp16WithAScaler) {
  const auto mode = make_precision("16-mixed", at::kCPU);
  EXPECT_EQ(mode->name(), "16-mixed");  // Lightning warns and takes bf16-mixed
  const Scope region = mode->forward_context();
  EXPECT_EQ(torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type(), at::kHalf);
  EXPECT_NE(dynamic_cast<ScaledPrecision&>(*mode).scaler(), nullptr);
}

TEST(Registry, OptionsGoToTheModesThatHaveThem) {
  const auto scaler_of = [](const std::string& mode, const PrecisionOptions& options) {
    return dynamic_cast<ScaledPrecision&>(*make_precision(mode, at::kCPU, options)).scaler();
  };
  EXPECT_EQ(scaler_of("16-true", {}), nullptr);
  for (const std::string mode : {"16-mixed", "16-true", "O1", "O2", "O3"}) {
    const auto precision = make_precision(mode, at::kCPU, {.loss_scale = "128"});
    GradScaler& scaler = *dynamic_cast<ScaledPrecision&>(*precision).scaler();
    EXPECT_EQ(scaler.get_scale(), 128);
    torch::nn::Linear net(1, 1);
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    precision->convert_module(*net);
    precision->setup_optimizer(optimizer);
    precision->backward(net->weight.sum() * HUGE_VAL);
    EXPECT_TRUE(precision->optimizer_step(optimizer).skipped);
    EXPECT_EQ(dynamic_cast<ScaledPrecision&>(*precision).scaler()->get_scale(), 128) << "a number stays";
  }
  for (const std::string mode : {"32-true", "64-true", "bf16-mixed", "bf16-true", "O0"})
    EXPECT_THAT(error_of([&] { make_precision(mode, at::kCPU, {.loss_scale = "dynamic"}); }),
                testing::HasSubstr("only fp16 gradients need a scale"));
  for (const std::string mode : {"32-true", "64-true", "bf16-mixed", "16-mixed", "O0", "O1"}) {
    EXPECT_THAT(error_of([&] { make_precision(mode, at::kCPU, {.keep_batchnorm_fp32 = false}); }),
                testing::HasSubstr("keep_batchnorm_fp32"));
    EXPECT_THAT(error_of([&] { make_precision(mode, at::kCPU, {.master_weights = true}); }),
                testing::HasSubstr("master_weights"));
  }
  for (const std::string wrong : {"", "big", "0", "-1", "nan", "inf", "12x", "1e-50", "1e39"})
    EXPECT_THAT(error_of([&] { make_precision("16-mixed", at::kCPU, {.loss_scale = wrong}); }),
                testing::HasSubstr("loss_scale '" + wrong + "' is no scale; give dynamic, none or a number"));
}

TEST(Registry, AmpFlagsOfLightning15NameAMode) {
  EXPECT_EQ(mode_of_amp_flags("bf16-mixed", "", ""), "bf16-mixed");
  EXPECT_EQ(mode_of_amp_flags("16", "native", ""), "16");
  EXPECT_EQ(mode_of_amp_flags("16", "apex", ""), "O2");
  EXPECT_EQ(mode_of_amp_flags("", "apex", "O1"), "O1");
  EXPECT_THAT(error_of([] { mode_of_amp_flags("16", "", "O1"); }), testing::HasSubstr("amp_backend 'apex'"));
  EXPECT_THAT(error_of([] { mode_of_amp_flags("16", "nvidia", ""); }), testing::HasSubstr("native or apex"));
  EXPECT_THAT(error_of([] { mode_of_amp_flags("bf16", "apex", ""); }), testing::HasSubstr("fp16 only"));
  EXPECT_THAT(error_of([] { mode_of_amp_flags("", "apex", "o2"); }),
              testing::HasSubstr("did you mean 'O2'?"));
}

TEST(Registry, NamesTheMissingDevice) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_THAT(error_of([] { make_precision("16-mixed", at::kCUDA); }),
              testing::HasSubstr("cannot run on cuda"));
}

}  // namespace
}  // namespace mantissa
