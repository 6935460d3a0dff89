// Adapters in every mode, added before or after it converts the model, under Mantissa's autocast, and in a trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <torch/torch.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/keep_in_fp32.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/lora/lora_model.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::adapters_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kWidth = 64;

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                               torch::nn::Linear(kWidth, kWidth));
}

at::Tensor base_of(const torch::nn::Sequential& net, const std::string& name) {
  return mantissa::dequantize(base_weight(net->named_parameters()[name])).detach().clone();
}

/// Returns what the net computes in the mode, with random numbers that are the same in each call.
at::Tensor output_of(const Precision& mode, torch::nn::Sequential& net, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(5);
  const Scope scope = mode.forward_context();
  return mode.convert_output(net->forward(mode.convert_input(x)));
}

/// Trains in a hand-written loop; returns the first and the last loss.
std::pair<double, double> train(Precision& mode, torch::nn::Sequential& net) {
  FusedAdamW optimizer(net->parameters(), AdamWOptions(1e-2));
  mode.setup_optimizer(optimizer);
  const at::Tensor x = torch::randn({64, kWidth}), y = x.flip(1) * 0.5;
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode.forward_context();
      loss =
          torch::mse_loss(mode.convert_output(net->forward(mode.convert_input(x))), mode.convert_output(y));
    }
    mode.backward(loss);
    mode.clip_gradients(optimizer, 10.0);
    mode.optimizer_step(optimizer);
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  return {first, last};
}

class AdaptersInModes : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(AdaptersInModes, TrainOnAFrozenBaseAndStayInFloat32) {
  const auto [comes_first, use_dora] = GetParam();
  for (const Mode& mode : modes()) {
    SCOPED_TRACE(mode.name);
    torch::manual_seed(0);
    torch::nn::Sequential net = make_net();
    const auto precision = make_precision(mode.name, at::kCPU);
    const LoraConfig config{.r = 16, .lora_alpha = 32, .use_dora = use_dora};
    std::optional<LoraModel> lora;
    if (comes_first) lora.emplace(*net, config);
    if (mode.traits.weights == Format::kFloat64) {
      EXPECT_THAT(error_of([&] {
                    precision->convert_module(*net);
                    lora.emplace(*net, config);
                  }),
                  testing::AllOf(HasSubstr("Double"), HasSubstr("packed")));
      continue;
    }
    precision->convert_module(*net);
    if (!comes_first) lora.emplace(*net, config);
    const at::Tensor before = base_of(net, "0.weight");
    const auto [first, last] = train(*precision, net);
    EXPECT_LT(last, 0.7 * first);
    EXPECT_TRUE(at::equal(base_of(net, "0.weight"), before));
    for (const auto& item : net->named_parameters()) {
      if (item.key().find("lora_") == std::string::npos) continue;
      EXPECT_EQ(item.value().scalar_type(), at::kFloat) << item.key();
    }
    const at::Tensor base = base_weight(net->named_parameters()["0.weight"]);
    const bool has_16_bits =
        mode.traits.weights == Format::kFloat16 || mode.traits.weights == Format::kBFloat16;
    EXPECT_EQ(base.scalar_type() != at::kFloat && !is_packed(base), has_16_bits);
    EXPECT_EQ(is_packed(base), mode.traits.frozen_weights) << "it is quantized under the adapter, too";
    lora->merge_and_unload();
    for (const auto& item : net->named_parameters())
      EXPECT_EQ(item.key().find("lora_"), std::string::npos) << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Order, AdaptersInModes, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "BeforeTheMode" : "AfterTheMode") +
                                  (std::get<1>(info.param) ? "Dora" : "Lora");
                         });

/// Autocast rounds the weight and the bias of a layer with an adapter to 16 bits, and those of an FP8 layer without one
/// stay in float32.
void round_values(torch::nn::Sequential& net) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) parameter.copy_(parameter.to(at::kBFloat16));
}

class AdaptersInModesWithRules : public testing::TestWithParam<const char*> {};

// The base computes as the mode does it, so a new adapter changes no bit, and one that is not active changes nothing.
TEST_P(AdaptersInModesWithRules, KeepTheRuleOfTheBase) {
  const at::Tensor x = torch::randn({16, kWidth});
  for (const bool comes_first : {false, true}) {
    SCOPED_TRACE(comes_first);
    torch::manual_seed(0);
    torch::nn::Sequential net = make_net();
    torch::manual_seed(0);
    torch::nn::Sequential plain = make_net();
    for (auto* const each : {&net, &plain}) round_values(*each);
    PrecisionOptions options;
    if (GetParam() == std::string("fp8-mixed")) options.fp8_first_and_last = true;
    const auto mode = make_precision(GetParam(), at::kCPU, options);
    const auto other = make_precision(GetParam(), at::kCPU, options);
    other->convert_module(*plain);
    const at::Tensor before = output_of(*other, plain, x);
    std::optional<LoraModel> lora;
    if (comes_first) lora.emplace(*net, LoraConfig{.target_modules = {"0"}}, "first");
    mode->convert_module(*net);
    if (!comes_first) lora.emplace(*net, LoraConfig{.target_modules = {"0"}}, "first");
    EXPECT_TRUE(at::equal(output_of(*mode, net, x), before)) << "B is zero";
    lora->add_adapter("second", {});
    EXPECT_TRUE(at::equal(output_of(*mode, net, x), before)) << "the second is not active";
    lora->set_adapter("second");
    EXPECT_TRUE(at::equal(output_of(*mode, net, x), before));
    {
      const at::NoGradGuard no_grad;
      net->named_parameters()["0.lora_B.second.weight"].normal_(0, 0.1);
    }
    const at::Tensor with = output_of(*mode, net, x);
    EXPECT_GT((with - before).abs().max().item<double>(), 0.01);
    const at::Tensor values = mantissa::dequantize(net->named_parameters()["0.weight"]).detach();
    lora->merge_adapter();
    EXPECT_TRUE(is_marked(net->named_parameters()["0.weight"]));
    {
      const at::NoGradGuard no_grad;
      plain->named_parameters()["0.weight"].copy_(values);
    }
    EXPECT_TRUE(at::equal(output_of(*mode, net, x), output_of(*other, plain, x))) << "merged";
    lora->unmerge_adapter();
    EXPECT_TRUE(at::equal(output_of(*mode, net, x), with)) << "unmerged";
    lora->unload();
    EXPECT_TRUE(at::equal(output_of(*mode, net, x), before)) << "unloaded";
    EXPECT_TRUE(is_marked(net->named_parameters()["0.weight"]));
    EXPECT_TRUE(net->named_parameters()["0.weight"].requires_grad());
    make_precision("16-mixed", at::kCPU)->convert_module(*net);
    EXPECT_FALSE(is_marked(net->named_parameters()["0.weight"]));
  }
}

TEST(AdaptersOnWeightsInFp8, AreTrainedWhileTheCodesStay) {
  const at::Tensor x = torch::randn({16, kWidth});
  for (const bool comes_first : {false, true}) {
    SCOPED_TRACE(comes_first);
    torch::manual_seed(0);
    torch::nn::Sequential net = make_net();
    const auto mode = make_precision("transformer-engine", at::kCPU, {.fp8_primary_weights = true});
    std::optional<LoraModel> lora;
    const LoraConfig config{.target_modules = {"0", "2"}};
    if (comes_first) lora.emplace(*net, config, "first");
    mode->convert_module(*net);
    const at::Tensor before = output_of(*mode, net, x);
    if (!comes_first) lora.emplace(*net, config, "first");
    EXPECT_TRUE(at::equal(output_of(*mode, net, x), before)) << "B is zero";
    EXPECT_EQ(is_packed(base_weight(net->named_parameters()["0.weight"])), !comes_first);
    const at::Tensor base = base_of(net, "0.weight");
    const auto [first, last] = train(*mode, net);
    EXPECT_LT(last, 0.8 * first);
    EXPECT_TRUE(base_of(net, "0.weight").equal(base));
  }
}

INSTANTIATE_TEST_SUITE_P(Mode, AdaptersInModesWithRules, testing::Values("int8-training", "fp8-mixed"),
                         [](const auto& info) { return std::string(info.param).substr(0, 3); });

TEST(AdaptersAnywhere, AutocastOfMantissaAndModulesKeptInFloat32) {
  torch::manual_seed(0);
  torch::nn::Linear layer(kWidth, kWidth);
  torch::nn::Sequential net(layer);
  const LoraModel lora(*net, {});
  const at::Tensor x = torch::randn({8, kWidth});
  const at::Tensor expected = net->forward(x).detach();
  enable_cpu_kernels();
  at::Tensor low, kept;
  {
    const Autocast region(at::kCPU);
    low = layer(x);
  }
  keep_in_fp32(*layer);
  {
    const Autocast region(at::kCPU);
    kept = layer(x.to(at::kBFloat16));
  }
  EXPECT_EQ(low.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(low.to(at::kFloat), expected, 3e-2, 3e-2)) << "bfloat16 has 8 bits";
  EXPECT_EQ(kept.scalar_type(), at::kFloat);
  kept.sum().backward();
  EXPECT_TRUE(net->named_parameters()["0.lora_B.default.weight"].grad().defined());
}

TEST(AdaptersAnywhere, ATraceNamesTheLayerWhoseAdapterOverflows) {
  torch::manual_seed(0);
  torch::nn::Sequential net = make_net();
  const LoraModel lora(*net, {});
  {
    const at::NoGradGuard no_grad;
    net->named_parameters()["2.lora_A.default.weight"].fill_(1);
    net->named_parameters()["2.lora_B.default.weight"].fill_(3e38);
  }
  const at::Tensor x = torch::full({2, kWidth}, 10.0);
  const auto origin = trace_nonfinite(*net, [&] { return net->forward(x).sum(); });
  ASSERT_TRUE(origin.has_value());
  EXPECT_EQ(origin->module, "2.lora_B.default") << origin->to_string();
}

}  // namespace
}  // namespace mantissa::adapters_test
