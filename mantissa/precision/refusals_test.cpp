// At which value each refusal of this room begins, and what it says. Each part of a condition has a value that only this
// part refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/fp8_layers.h"
#include "mantissa/precision/mixed.h"
#include "mantissa/precision/quantize_module.h"
#include "mantissa/precision/quantized.h"
#include "mantissa/precision/registry.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa::refusals_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::unique_ptr<GradScaler> a_scaler() { return std::make_unique<GradScaler>(at::kCPU); }

TEST(Refusals, OfDtypesThatAMixedModeLacks) {
  const auto error = [](at::ScalarType dtype, std::unique_ptr<GradScaler> scaler) {
    return error_of([&] { MixedPrecision(dtype, at::kCPU, std::move(scaler)); });
  };
  EXPECT_EQ(error(at::kHalf, nullptr), "no error");
  EXPECT_EQ(error(at::kHalf, a_scaler()), "no error");
  EXPECT_EQ(error(at::kBFloat16, nullptr), "no error");
  EXPECT_THAT(error(at::kBFloat16, a_scaler()), HasSubstr("bf16-mixed uses no scaler"));
  EXPECT_THAT(error(at::kFloat, nullptr), HasSubstr("products can run in Half or BFloat16, got Float"));
}

TEST(Refusals, OfOptionsThatATrueModeLacks) {
  const auto error = [](at::ScalarType dtype, TrueDtypeOptions options) {
    return error_of([&] { TrueDtype(dtype, std::move(options)); });
  };
  EXPECT_THAT(error(at::kFloat, {}), HasSubstr("can be kept in Double, Half or BFloat16, got Float"));
  EXPECT_THAT(error(at::kDouble, {.keep_batchnorm_fp32 = true}),
              HasSubstr("64-true: its weights are not 16-bit"));
  EXPECT_THAT(error(at::kDouble, {.master_weights = true}), HasSubstr("64-true: its weights are not 16-bit"));
  EXPECT_EQ(error(at::kDouble, {}), "no error");
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    EXPECT_EQ(error(dtype, {.keep_batchnorm_fp32 = true}), "no error");
    EXPECT_EQ(error(dtype, {.master_weights = true}), "no error");
  }
  EXPECT_THAT(error(at::kBFloat16, {.scaler = a_scaler()}),
              HasSubstr("bf16-true: only fp16 gradients need a"));
  EXPECT_EQ(error(at::kHalf, {.scaler = a_scaler()}), "no error");
}

TEST(Refusals, OfDtypesThatAQuantizedModeLacks) {
  const auto error = [](Format format, at::ScalarType dtype) {
    return error_of(
        [&] { QuantizedPrecision("mine", at::kCPU, {.weights = {.format = format}, .dtype = dtype}); });
  };
  EXPECT_THAT(error(Format::kInt8, at::kBFloat16),
              HasSubstr("precision 'mine' with dtype bfloat16: it only works with float16; leave dtype out"));
  EXPECT_EQ(error(Format::kInt8, at::kHalf), "no error");
  EXPECT_THAT(error(Format::kNF4, at::kDouble), HasSubstr("computed in float32, float16 or bfloat16"));
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    EXPECT_EQ(error(Format::kNF4, dtype), "no error");
}

TEST(Refusals, OfAMatmulPrecisionThatDoesNotExistKeepTheOneBefore) {
  const auto mode = make_precision("32-true", at::kCPU);
  mode->set_float32_matmul_precision("high");
  EXPECT_THAT(error_of([&] { mode->set_float32_matmul_precision("fast"); }), HasSubstr("'fast'"));
  EXPECT_NE(mode->run_context(), nullptr);
  EXPECT_EQ(error_of([&] { mode->set_float32_matmul_precision(std::nullopt); }), "no error");
  EXPECT_EQ(mode->run_context(), nullptr);
}

TEST(Refusals, OfALineSearchComeBeforeTheClosureRuns) {
  struct WithoutLineSearch : Precision {
    WithoutLineSearch() : Precision("mine") {}
    void check_line_search() const override { TORCH_CHECK_TYPE(false, "no line search"); }
  } mode;
  torch::nn::Linear net(2, 2);
  torch::optim::LBFGS lbfgs(net->parameters(), 0.1);
  bool has_run = false;
  EXPECT_THAT(error_of([&] {
                mode.optimizer_step(lbfgs, [&] {
                  has_run = true;
                  return at::ones({});
                });
              }),
              HasSubstr("no line search"));
  EXPECT_FALSE(has_run);
}

TEST(Refusals, OfLineSearchesNameTheirReason) {
  torch::nn::Linear net(2, 2);
  torch::optim::LBFGS lbfgs(net->parameters(), 0.1);
  const auto error = [&](const char* name, const PrecisionOptions& options) {
    const auto mode = make_precision(name, at::kCPU, options);
    return error_of([&] { mode->setup_optimizer(lbfgs); });
  };
  EXPECT_THAT(error("16-mixed", {}),
              HasSubstr("16-mixed: LBFGS evaluates its loss several times a step, which a"));
  EXPECT_THAT(error("16-true", {.loss_scale = "dynamic"}),
              HasSubstr("which a gradient scaler cannot follow"));
  EXPECT_THAT(error("bf16-true", {.master_weights = true}), HasSubstr("which master weights cannot follow"));
  for (const char* good : {"32-true", "bf16-mixed", "16-true", "bf16-true"})
    EXPECT_EQ(error(good, {}), "no error");
}

TEST(Refusals, OfALineSearchWithoutALoss) {
  const auto mode = make_precision("32-true", at::kCPU);
  torch::nn::Linear net(2, 2);
  torch::optim::LBFGS lbfgs(net->parameters(), 0.1);
  EXPECT_THAT(error_of([&] { mode->optimizer_step(lbfgs, [] { return at::Tensor(); }); }),
              HasSubstr("LBFGS compares losses, so every batch needs one"));
}

TEST(Refusals, OfASecondStepWithTheSameGradients) {
  const auto mode = make_precision("16-mixed", at::kCPU);
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->convert_module(*net);
  mode->setup_optimizer(optimizer);
  mode->backward(net->bias.sum());
  EXPECT_FALSE(mode->optimizer_step(optimizer).skipped());
  EXPECT_THAT(error_of([&] { mode->optimizer_step(optimizer); }),
              HasSubstr("a step has already used these gradients; call backward() before each step"));
}

TEST(Refusals, OfRecipesThatNothingCanFollow) {
  const Fp8Recipe wrong = DelayedScaling{.amax_history_len = 0};
  EXPECT_THAT(error_of([&] { make_precision("32-true", at::kCPU, {.recipe = wrong}); }),
              HasSubstr("DelayedScaling: amax_history_len is 0"))
      << "in a mode without FP8, too";
  EXPECT_THAT(error_of([&] { Fp8Layers("test", {.recipe = wrong}); }),
              HasSubstr("DelayedScaling: amax_history_len is 0"));
}

TEST(Refusals, OfALossSayWhatItLacks) {
  for (const char* const name : {"32-true", "16-mixed"}) {
    const auto mode = make_precision(name, at::kCPU);
    EXPECT_THAT(error_of([&] { mode->backward(at::ones({})); }),
                HasSubstr("got a loss that requires no gradient"));
    EXPECT_THAT(error_of([&] { mode->backward(at::Tensor()); }), HasSubstr("got no loss;"));
  }
}

TEST(Refusals, AClipByValueIsTheSameWithAndWithoutAScale) {
  for (const char* const name : {"32-true", "16-mixed"}) {
    const auto mode = make_precision(name, at::kCPU);
    torch::nn::Linear net(2, 2);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    mode->setup_optimizer(optimizer);
    mode->backward((net->bias * at::tensor({4.F, 0.25F})).sum());
    EXPECT_FALSE(mode->clip_gradients(optimizer, 0.5, GradientClipAlgorithm::kValue).defined());
    EXPECT_TRUE(at::equal(net->bias.grad(), at::tensor({0.5F, 0.25F}))) << name;
  }
}

TEST(Refusals, AClipOf0LeavesTheGradients) {
  for (const char* const name : {"32-true", "16-mixed"}) {
    for (const auto algorithm : {GradientClipAlgorithm::kNorm, GradientClipAlgorithm::kValue}) {
      const auto mode = make_precision(name, at::kCPU);
      torch::nn::Linear net(2, 2);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      mode->setup_optimizer(optimizer);
      mode->backward(net->bias.sum());
      const at::Tensor before = net->bias.grad().clone();
      EXPECT_FALSE(mode->clip_gradients(optimizer, 0, algorithm).defined());
      EXPECT_TRUE(at::equal(net->bias.grad(), before)) << name;
    }
  }
}

TEST(Refusals, OfModulesWithoutLayersNameWhatWouldHelp) {
  torch::nn::Sequential net{torch::nn::ReLU()};
  const auto error = [&](const PrecisionOptions& options) {
    return error_of([&] { make_precision("nf4", at::kCPU, options)->convert_module(*net); });
  };
  EXPECT_THAT(error({}),
              AllOf(HasSubstr("has no torch::nn::Linear whose weight could be quantized"),
                    HasSubstr("choose another mode, or quantize_embeddings or quantize_convolutions")));
  EXPECT_THAT(error({.quantize_embeddings = true}),
              AllOf(HasSubstr("has no torch::nn::Linear, no embedding whose"),
                    HasSubstr(", or quantize_embeddings or")));
  EXPECT_THAT(
      error({.quantize_convolutions = true}),
      AllOf(HasSubstr("has no torch::nn::Linear, no convolution whose"), HasSubstr(", or quantize_emb")));
  EXPECT_THAT(error({.quantize_embeddings = true, .quantize_convolutions = true}),
              AllOf(HasSubstr("no embedding, no convolution whose"), Not(HasSubstr("or quantize_"))));
}

}  // namespace
}  // namespace mantissa::refusals_test
