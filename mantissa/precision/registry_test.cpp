#include "mantissa/precision/registry.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <map>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/mode_suggestion.h"
#include "mantissa/precision/scaled.h"
#include "mantissa/precision/test_support_internal.h"

namespace mantissa::registry_test {
namespace {

std::string error_of(const std::function<void()>& call) { return mantissa::error_of<c10::ValueError>(call); }

TEST(Registry, ERR01_RefusesUnknownNamesWithTheListAndTheNearest) {
  for (const std::string name :
       {"8", "1", "12", "mixed", "fp16", "bfloat16", "BF16", "true", "", "32.0", "16-Mixed"}) {
    const std::string error = error_of([&] { make_precision(name, at::kCPU); });
    EXPECT_THAT(error, testing::HasSubstr("precision '" + name + "' is not a mode"));
    EXPECT_THAT(error, testing::HasSubstr("allowed: 32-true, tf32-mixed, 64-true, 16-mixed, bf16-mixed, "
                                          "16-true, bf16-true, nf4, nf4-dq, fp4, fp4-dq, int8, "
                                          "int8-training, fp8-mixed, transformer-engine, "
                                          "transformer-engine-float16, 32, 64, 16, bf16, "
                                          "O0, O1, O2, O3"));
  }
  EXPECT_THAT(error_of([] { make_precision("BF16-mixed", at::kCPU); }),
              testing::HasSubstr("did you mean 'bf16-mixed' (float32 weights, bf16 products)?"));
  const auto meant = [](const std::string& name) {
    const std::string error = error_of([&] { make_precision(name, at::kCPU); });
    const size_t begin = error.find("; did you mean "), end = error.find("; allowed");
    return begin == std::string::npos ? "" : error.substr(begin + 15, end - begin - 15);
  };
  for (const char* half : {"fp16", "float16", "half", "torch.half", "F16"})
    EXPECT_EQ(meant(half),
              "'16-mixed' (float32 weights, fp16 products, scaled gradients) or '16-true' (fp16 weights, "
              "activations and gradients)?");
  for (const char* one : {"fp32", "float", "single-true", "32_true"})
    EXPECT_EQ(meant(one), "'32-true' (weights and arithmetic as built, usually float32)?");
  EXPECT_THAT(meant("bf16_mixed"), testing::StartsWith("'bf16-mixed' ("));
  EXPECT_THAT(meant("fp64"), testing::StartsWith("'64-true' ("));
  EXPECT_THAT(meant("mixed"), testing::HasSubstr(" or 'bf16-mixed' ("));
  EXPECT_THAT(meant("4bit"), testing::AllOf(testing::StartsWith("'nf4' ("), testing::HasSubstr("'nf4-dq'")));
  EXPECT_THAT(meant("8-bit"), testing::StartsWith("'int8' ("));
  EXPECT_EQ(meant("posit16"), "");
  EXPECT_THAT(meant("bf16mixed"), testing::StartsWith("'bf16-mixed' ("));
  EXPECT_THAT(meant("16mixed"), testing::StartsWith("'16-mixed' ("));
  EXPECT_THAT(meant("BF17-mixed"), testing::StartsWith("'bf16-mixed'"));
  EXPECT_THAT(meant("posit16-mixed"), testing::Not(testing::HasSubstr("' (")));
  EXPECT_THAT(error_of([] { make_precision("o2", at::kCPU); }), testing::HasSubstr("did you mean 'O2'?"));
  EXPECT_THAT(error_of([] { make_precision(8, at::kCPU); }), testing::HasSubstr("'8'"));
}

TEST(Registry, WhatANameBeginsWithCountsForMoreThanItsTypingErrors) {
  const auto meant = [](const std::string& name) {
    const std::string error = error_of([&] { make_precision(name, at::kCPU); });
    const size_t begin = error.find("; did you mean "), end = error.find("; allowed");
    return begin == std::string::npos ? "" : error.substr(begin + 15, end - begin - 15);
  };
  using testing::AllOf;
  using testing::HasSubstr;
  using testing::Not;
  using testing::StartsWith;
  for (const char* const name : {"nf4dq", "NF4_DQ", "nf4-dq-"})
    EXPECT_THAT(meant(name), AllOf(StartsWith("'nf4-dq' ("), Not(HasSubstr(" or ")))) << name;
  for (const char* const name : {"int8_training", "int8training", "int8-tr", "int8-traning"})
    EXPECT_THAT(meant(name), AllOf(StartsWith("'int8-training'"), Not(HasSubstr("'int8'")))) << name;
  EXPECT_THAT(meant("nf"), AllOf(StartsWith("'nf4' ("), HasSubstr(" or 'nf4-dq' (")));
  EXPECT_THAT(meant("nf4-double"), AllOf(StartsWith("'nf4' ("), HasSubstr(" or 'nf4-dq' (")));
  EXPECT_THAT(meant("int8-weights"), AllOf(StartsWith("'int8' ("), HasSubstr(" or 'int8-training' (")));
  EXPECT_THAT(meant("fp16-mixd"), StartsWith("'16-mixed'"))
      << "not bf16-mixed, which has fewer other letters";
  // A number that other modes have is not a typing error.
  for (const char* const name : {"fp8", "fp8-dq", "nf8", "fp16-dq"})
    EXPECT_THAT(meant(name), AllOf(Not(HasSubstr("'fp4")), Not(HasSubstr("'nf4")))) << name;
  EXPECT_THAT(meant("nf5"), StartsWith("'nf4'")) << "no mode has 5 bits";
}

TEST(Registry, WordsBesideTheFormatChooseTheMode) {
  const auto names = [](const std::string& name, const std::vector<std::string>& allowed) {
    const std::string text = suggest_modes(name, allowed);
    std::string found;
    for (const Mode& mode : modes())
      if (text.find("'" + mode.name + "' (") != std::string::npos) found += mode.name + " ";
    return found;
  };
  const std::vector<std::string> all{"32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"};
  EXPECT_EQ(names("half-precision", all), "16-mixed 16-true ");
  EXPECT_EQ(names("pure bf16", all), "bf16-true ");
  EXPECT_EQ(names("amp-bf16", all), "bf16-mixed ");
  EXPECT_EQ(names("pure", all), "32-true 16-true bf16-true ");
  EXPECT_EQ(names("half-precision", {"32-true", "16-true"}), "16-true ") << "the others are not allowed";
}

TEST(Registry, NamesOfFp8MeanTheModesThatTrainInIt) {
  const auto error = [](const std::string& name) {
    return error_of([&] { make_precision(name, at::kCPU); });
  };
  for (const char* const name : {"fp8", "float8", "FP8_mixed", "fp8-delayed"})
    EXPECT_THAT(error(name), testing::HasSubstr("did you mean 'fp8-mixed' (")) << name;
  EXPECT_THAT(error("fp8"), testing::HasSubstr(" or 'transformer-engine' ("));
  EXPECT_THAT(error("transformer_engine"), testing::HasSubstr("did you mean 'transformer-engine' ("));
  EXPECT_THAT(error("transformer-engine-fp16"), testing::HasSubstr("'transformer-engine"));
}

TEST(Registry, ARowWhoseFormatHasNoDtypeIsAnErrorThatNamesIt) {
  for (const char* name : {"64-true", "bf16-mixed", "bf16-true"}) {
    Mode row = find_mode(name);
    row.traits.compute = Format::kNF4;
    EXPECT_THAT(
        [&] { row.make(row, at::kCPU, {}); },
        testing::ThrowsMessage<c10::NotImplementedError>(testing::HasSubstr("libtorch has no dtype for nf4")))
        << name;
  }
}

TEST(Registry, AQuantizedModeHasTheTraitsOfItsRow) {
  int found = 0;
  for (const Mode& mode : modes()) {
    if (!mode.traits.frozen_weights && mode.traits.layer_products != Format::kInt8) continue;
    const PrecisionTraits made = make_precision(mode.name, at::kCPU)->traits();
    EXPECT_EQ(made.double_quantized, mode.traits.double_quantized) << mode.name;
    EXPECT_EQ(made.layer_products, mode.traits.layer_products) << mode.name;
    EXPECT_EQ(made.weights, mode.traits.weights) << mode.name;
    ++found;
  }
  EXPECT_GE(found, 6);
}

TEST(Registry, FindsTheModeOfStoredWeights) {
  for (const Mode& mode : modes()) {
    if (!mode.traits.frozen_weights) continue;
    EXPECT_EQ(mode_for_weights(*mode.traits.weights, mode.traits.double_quantized), &mode) << mode.name;
  }
  EXPECT_EQ(mode_for_weights(Format::kNF4, true), &find_mode("nf4-dq"));
  EXPECT_EQ(mode_for_weights(Format::kInt8, true), nullptr);
  EXPECT_EQ(mode_for_weights(Format::kBFloat16, false), nullptr);
  EXPECT_EQ(mode_for_dtype(at::kDouble), &find_mode("64-true"));
  EXPECT_EQ(mode_for_dtype(at::kFloat), &find_mode("32-true"));
  EXPECT_EQ(mode_for_dtype(at::kHalf), &find_mode("16-true"));
  EXPECT_EQ(mode_for_dtype(at::kBFloat16), &find_mode("bf16-true"));
  EXPECT_EQ(mode_for_dtype(at::kLong), nullptr);
}

TEST(Registry, AnErrorListsTheModesThatHaveTheOption) {
  const auto error = [](const PrecisionOptions& options) {
    return error_of([&] { make_precision("32-true", at::kCPU, options); });
  };
  EXPECT_THAT(error({.master_weights = true}),
              testing::AllOf(testing::HasSubstr("16-true"), testing::HasSubstr(" or O3")));
  EXPECT_THAT(error({.ignore_modules = {"head"}}),
              testing::HasSubstr(
                  "only nf4, nf4-dq, fp4, fp4-dq, int8, int8-training, fp8-mixed, transformer-engine and "
                  "transformer-engine-float16 compute layers with"));
  EXPECT_THAT(error_of([] { make_precision("nf4", at::kCPU, {.llm_int8_threshold = 5.0}); }),
              testing::HasSubstr("only int8 and int8-training treat outliers separately"));
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
    const auto precision = make_precision(mode.name, at::kCPU);
    EXPECT_EQ(precision->name(), mode.name);
    EXPECT_EQ(precision->traits(), mode.traits) << mode.name;
    EXPECT_FALSE(mode.summary.empty());
    EXPECT_FALSE(mode_support(mode, at::kCPU).reason.empty());
    const FormatSupportInfo support = mode_support(mode, at::kCPU);
    if (mode.traits.layer_products == Format::kFloat8E4M3) {
      EXPECT_EQ(support.support, FormatSupport::kEmulated) << mode.name;
      EXPECT_EQ(mode_support(mode, at::kCUDA).support, FormatSupport::kUnavailable) << mode.name;
      continue;
    }
    EXPECT_EQ(support.reason, format_support(at::kCPU, mode.traits.compute).reason)
        << "the CPU has every format";
  }
}

TEST(Registry, OptionsChangeTheTraitsOfAMode) {
  const auto with = [](const char* name, const PrecisionOptions& options) {
    const PrecisionTraits traits = traits_of(find_mode(name), options);
    EXPECT_EQ(make_precision(name, at::kCPU, options)->traits(), traits) << name;
    return traits;
  };
  EXPECT_EQ(with("16-true", {.master_weights = true}).gradients, Format::kFloat32);
  EXPECT_EQ(with("16-true", {.master_weights = false}).gradients, Format::kFloat16);
  EXPECT_TRUE(with("bf16-true", {.master_weights = true}).master_weights);
  EXPECT_FALSE(with("16-true", {.loss_scale = "none"}).scales_loss);
  EXPECT_TRUE(with("16-true", {.loss_scale = "128"}).scales_loss);
}

TEST(Registry, OnlyHistoricalAliasesWarn) {
  const Warnings warnings;
  for (const std::string name : {"32", "64", "32-true", "16-mixed"}) find_mode(name);
  EXPECT_THAT(warnings.texts, testing::IsEmpty());
  find_mode("16");
  find_mode("bf16");
  EXPECT_THAT(warnings.texts,
              testing::ElementsAre(testing::HasSubstr("'16-mixed'"), testing::HasSubstr("'bf16-mixed'")));
}

TEST(Registry, ERR08_On16MixedTheCpuRunsFp16WithAScaler) {
  const auto mode = make_precision("16-mixed", at::kCPU);
  EXPECT_EQ(mode->name(), "16-mixed");  // Lightning warns and uses bf16-mixed instead
  const Scope region = mode->forward_context();
  EXPECT_EQ(torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type(), at::kHalf);
  EXPECT_NE(dynamic_cast<ScaledPrecision&>(*mode).scaler(), nullptr);
}

TEST(Registry, OptionsGoToTheModesThatHaveThem) {
  EXPECT_FALSE(make_precision("16-true", at::kCPU)->loss_scale().defined());
  for (const std::string mode : {"16-mixed", "16-true", "O1", "O2", "O3"}) {
    const auto precision = make_precision(mode, at::kCPU, {.loss_scale = "128"});
    GradScaler& scaler = *dynamic_cast<ScaledPrecision&>(*precision).scaler();
    EXPECT_EQ(scaler.get_scale(), 128);
    torch::nn::Linear net(1, 1);
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    precision->convert_module(*net);
    precision->setup_optimizer(optimizer);
    precision->backward(net->weight.sum() * HUGE_VAL);
    EXPECT_TRUE(precision->optimizer_step(optimizer).skipped());
    EXPECT_EQ(next_scale(*precision), 128) << "a number stays";
  }
  for (const std::string mode : {"32-true", "64-true", "bf16-mixed", "bf16-true", "O0"})
    EXPECT_THAT(error_of([&] { make_precision(mode, at::kCPU, {.loss_scale = "dynamic"}); }),
                testing::HasSubstr("only fp16 gradients need a scale"));
  for (const std::string mode : {"32-true", "64-true", "bf16-mixed", "16-mixed", "O0", "O1"}) {
    EXPECT_THAT(error_of([&] { make_precision(mode, at::kCPU, {.keep_batchnorm_fp32 = false}); }),
                testing::HasSubstr("with keep_batchnorm_fp32 false: its weights are not 16-bit; leave it"));
    EXPECT_THAT(error_of([&] { make_precision(mode, at::kCPU, {.master_weights = true}); }),
                testing::HasSubstr("with master_weights true: its weights are not 16-bit; leave it out"));
  }
  for (const std::string wrong : {"", "big", "0", "-1", "nan", "inf", "12x", " 12", "0x10", "1e-50", "1e39"})
    EXPECT_THAT(
        error_of([&] { make_precision("16-mixed", at::kCPU, {.loss_scale = wrong}); }),
        testing::HasSubstr("loss_scale '" + wrong + "' is not a scale; give dynamic, none or a number"));
  for (const std::string beyond : {"1e-400", "1e400"})
    EXPECT_THAT(error_of([&] { make_precision("16-mixed", at::kCPU, {.loss_scale = beyond}); }),
                testing::HasSubstr("loss_scale '" + beyond + "' is out of range: "));
}

/// Returns the scale after update(scale), which brings it up to the floor or down to the ceiling.
double bounded(GradScaler& scaler, double scale) {
  scaler.scale(torch::ones({}));
  scaler.update(scale);
  return scaler.get_scale();
}

TEST(Registry, TheScalersNumbersReachIt) {
  const PrecisionOptions options{.loss_scale = "dynamic",
                                 .init_scale = 512,
                                 .growth_factor = 4,
                                 .backoff_factor = 0.25,
                                 .min_scale = 2,
                                 .max_scale = 1024,
                                 .growth_interval = 7,
                                 .hysteresis_steps = 3};
  for (const std::string mode : {"16-mixed", "16-true", "O1", "O2", "O3"}) {
    const auto precision = make_precision(mode, at::kCPU, options);
    GradScaler& scaler = *dynamic_cast<ScaledPrecision&>(*precision).scaler();
    EXPECT_EQ(scaler.get_scale(), 512) << mode;
    EXPECT_EQ(scaler.get_growth_factor(), 4);
    EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
    EXPECT_EQ(scaler.get_growth_interval(), 7);
    EXPECT_EQ(scaler_state(*precision).at("_hysteresis_tracker").toInt(), 3);
    EXPECT_EQ(bounded(scaler, 1e30), 1024);
    EXPECT_EQ(bounded(scaler, 1e-30), 2);
  }
}

TEST(Registry, WarnAfterSkipsReachesFixedScalesToo) {
  for (const std::string scale : {"dynamic", "128"}) {
    const auto mode = make_precision("16-mixed", at::kCPU, {.loss_scale = scale, .warn_after_skips = 2});
    torch::nn::Linear net(1, 1);
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    mode->convert_module(*net);
    const Warnings warnings;
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(warnings.texts, testing::IsEmpty());
      optimizer.zero_grad();
      mode->backward(net->weight.sum() * HUGE_VAL);
      EXPECT_TRUE(mode->optimizer_step(optimizer).skipped());
    }
    EXPECT_EQ(warnings.texts.size(), 1) << scale;
  }
}

TEST(Registry, ApexsLevelsHaveApexsCeilingAndFirstScale) {
  const auto scaler_of = [](Precision& precision) -> GradScaler& {
    return *dynamic_cast<ScaledPrecision&>(precision).scaler();
  };
  for (const std::string mode : {"O1", "O2", "O3"}) {
    const auto apex = make_precision(mode, at::kCPU, {.loss_scale = "dynamic"});
    EXPECT_EQ(scaler_of(*apex).get_scale(), 65536) << mode;
    EXPECT_EQ(bounded(scaler_of(*apex), 1e30), 16777216) << mode;
    const auto told = make_precision(mode, at::kCPU, {.loss_scale = "dynamic", .max_scale = 1e9});
    EXPECT_EQ(bounded(scaler_of(*told), 1e30), 1e9) << mode;
    const auto higher = make_precision(mode, at::kCPU, {.loss_scale = "dynamic", .init_scale = 0x1p26});
    EXPECT_EQ(bounded(scaler_of(*higher), 1e30), 0x1p26) << mode;
    const auto fixed = make_precision(mode, at::kCPU, {.loss_scale = "1e9"});
    EXPECT_EQ(scaler_of(*fixed).get_scale(), 1e9) << "a number is what it is";
  }
  const auto torchs = make_precision("16-mixed", at::kCPU);
  EXPECT_GT(bounded(scaler_of(*torchs), 1e30), 9e29);
}

TEST(Registry, AFirstScaleThatIsNotGivenIsBroughtIntoTheLimits) {
  const auto first = [](const std::string& mode, const PrecisionOptions& options) {
    return dynamic_cast<ScaledPrecision&>(*make_precision(mode, at::kCPU, options)).scaler()->get_scale();
  };
  EXPECT_EQ(first("16-mixed", {.max_scale = 1024}), 1024);
  EXPECT_EQ(first("16-mixed", {.min_scale = 1e6}), 1e6);
  EXPECT_EQ(first("O2", {.min_scale = 0x1p25}), 0x1p25) << "above Apex's ceiling";
  EXPECT_EQ(first("16-mixed", {.max_scale = std::numeric_limits<float>::min()}),
            std::numeric_limits<float>::min());
  EXPECT_EQ(first("16-mixed", {.min_scale = 0}), 65536);
}

TEST(Registry, TheScalersNumbersAreRefusedWhereNothingReadsThem) {
  const auto error = [](const std::string& mode, const PrecisionOptions& options) {
    return error_of([&] { make_precision(mode, at::kCPU, options); });
  };
  for (const std::string mode : {"32-true", "64-true", "bf16-mixed", "bf16-true", "O0"}) {
    EXPECT_EQ(
        error(mode, {.growth_factor = 4}),
        "precision '" + mode +
            "' with growth_factor 4: only fp16 gradients need a scale; leave it out, or choose 16-mixed "
            "or 16-true");
    EXPECT_THAT(error(mode, {.warn_after_skips = 3}), testing::HasSubstr("with warn_after_skips 3: only"));
  }
  for (const auto& [name, option] :
       std::map<std::string, PrecisionOptions>{{"init_scale 2", {.init_scale = 2}},
                                               {"growth_factor 3", {.growth_factor = 3}},
                                               {"backoff_factor 0.5", {.backoff_factor = 0.5}},
                                               {"min_scale 1", {.min_scale = 1}},
                                               {"max_scale 9", {.max_scale = 9}},
                                               {"growth_interval 5", {.growth_interval = 5}},
                                               {"hysteresis_steps 2", {.hysteresis_steps = 2}},
                                               {"warn_after_skips 4", {.warn_after_skips = 4}}}) {
    const std::string unused = ": " + name + " needs a loss scale; leave it out, or give loss_scale dynamic";
    for (const std::string mode : {"16-true", "O3"})
      EXPECT_EQ(error(mode, option), "precision '" + mode + "'" + unused);
    PrecisionOptions with_scale = option;
    with_scale.loss_scale = "none";
    for (const std::string mode : {"16-mixed", "O2"})
      EXPECT_EQ(error(mode, with_scale), "precision '" + mode + "'" + unused);
    with_scale.loss_scale = "128";
    EXPECT_EQ(error("16-mixed", with_scale),
              option.warn_after_skips ? "no error"
                                      : "loss_scale 128 is fixed, so " + name +
                                            " has no effect; leave it out, or give loss_scale dynamic");
  }
}

TEST(Registry, RefusesTheScalersNumbersOutOfRangeInAnyMode) {
  const double nan = std::nan(""), inf = HUGE_VAL;
  const auto refuses = [](const std::string& start, const PrecisionOptions& options) {
    for (const std::string mode : {"16-mixed", "32-true"}) {
      const std::string error = error_of([&] { make_precision(mode, at::kCPU, options); });
      EXPECT_THAT(error, testing::StartsWith(start)) << mode;
      EXPECT_THAT(error, testing::HasSubstr("; choose ")) << "the cure";
    }
  };
  for (const double wrong : {nan, inf, -1.0, 0.0, 1e-40, 1e39}) {
    refuses("init_scale ", {.init_scale = wrong});
    refuses("max_scale ", {.max_scale = wrong});
  }
  for (const double wrong : {nan, inf, -1.0, 1e39}) refuses("min_scale ", {.min_scale = wrong});
  for (const double wrong : {nan, inf, -2.0, 0.5, 1.0}) refuses("growth_factor ", {.growth_factor = wrong});
  for (const double wrong : {nan, inf, -0.5, 0.0, 1.0, 2.0})
    refuses("backoff_factor ", {.backoff_factor = wrong});
  for (const int64_t wrong : {int64_t{0}, int64_t{-1}, int64_t{1} << 32}) {
    refuses("growth_interval " + std::to_string(wrong) + " is", {.growth_interval = wrong});
    refuses("hysteresis_steps " + std::to_string(wrong) + " is", {.hysteresis_steps = wrong});
  }
  refuses("warn_after_skips -1 is", {.warn_after_skips = -1});
  refuses("min_scale 8 is above max_scale 4", {.min_scale = 8, .max_scale = 4});
  refuses("init_scale 2 is not from min_scale 4 to max_scale 8",
          {.init_scale = 2, .min_scale = 4, .max_scale = 8});
}

TEST(Registry, AmpFlagsOfLightning15NameAMode) {
  EXPECT_EQ(mode_of_amp_flags("bf16-mixed", "", ""), "bf16-mixed");
  EXPECT_EQ(mode_of_amp_flags("16", "native", ""), "16");
  EXPECT_EQ(mode_of_amp_flags("16", "apex", ""), "O2");
  EXPECT_EQ(mode_of_amp_flags("", "apex", "O1"), "O1");
  EXPECT_THAT(error_of([] { mode_of_amp_flags("16", "", "O1"); }), testing::HasSubstr("amp_backend 'apex'"));
  EXPECT_THAT(error_of([] { mode_of_amp_flags("16", "nvidia", ""); }), testing::HasSubstr("native or apex"));
  EXPECT_THAT(error_of([] { mode_of_amp_flags("bf16", "apex", ""); }),
              testing::HasSubstr("choose by amp_level"));
  EXPECT_EQ(mode_of_amp_flags("O1", "apex", ""), "O1");
  EXPECT_EQ(mode_of_amp_flags("O1", "apex", "O1"), "O1");
  EXPECT_THAT(error_of([] { mode_of_amp_flags("O1", "apex", "O2"); }), testing::HasSubstr("'O1' with amp"));
  EXPECT_THAT(error_of([] { mode_of_amp_flags("", "apex", "o2"); }),
              testing::HasSubstr("did you mean 'O2'?"));
  EXPECT_THAT(error_of([] { mode_of_amp_flags("", "apex", "O4"); }),
              testing::HasSubstr("amp_level 'O4' is not a valid value; choose from O0, O1, O2, O3"));
}

TEST(Registry, NamesTheMissingDevice) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_THAT(error_of([] { make_precision("16-mixed", at::kCUDA); }),
              testing::HasSubstr("cannot run on cuda"));
}

TEST(Registry, TakesTheScalersNumbersUpToTheirLimits) {
  const double smallest = std::numeric_limits<float>::min();
  EXPECT_NO_THROW(make_precision("16-mixed", at::kCPU, {.loss_scale = "1.1754943508222875e-38"})) << smallest;
  EXPECT_NO_THROW(make_precision("16-mixed", at::kCPU, {.growth_interval = 1, .hysteresis_steps = 1}));
  EXPECT_NO_THROW(make_precision("16-mixed", at::kCPU, {.warn_after_skips = 0}));
  EXPECT_NO_THROW(
      make_precision("16-mixed", at::kCPU, {.growth_factor = 1.5, .growth_interval = 2147483647}));
  EXPECT_NO_THROW(make_precision("16-mixed", at::kCPU, {.min_scale = 4, .max_scale = 4}));
  EXPECT_NO_THROW(make_precision("16-mixed", at::kCPU, {.loss_scale = "3.4028234663852886e38"}));
  EXPECT_THAT(error_of([] { make_precision("32-true", at::kCPU, {.loss_scale = "big"}); }),
              testing::HasSubstr("loss_scale 'big' is not a scale"));
  EXPECT_THAT(error_of([] { make_precision("16-mixed", at::kCPU, {.growth_interval = 2147483648}); }),
              testing::HasSubstr("growth_interval 2147483648 is out of range; choose 1 to 2147483647"));
  for (const double init_scale : {4.0, 8.0})
    EXPECT_NO_THROW(
        make_precision("16-mixed", at::kCPU, {.init_scale = init_scale, .min_scale = 4, .max_scale = 8}));
}

}  // namespace
}  // namespace mantissa::registry_test
