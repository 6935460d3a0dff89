#include "mantissa/precision/quantized.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/test_support_internal.h"
#include "mantissa/optim/ema.h"
#include "mantissa/precision/init.h"
#include "mantissa/precision/registry.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/packed_int8.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::quantized_test {
namespace {

using test::same_bits;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Tensors = std::map<std::string, at::Tensor>;

Tensors weights_of(const torch::nn::Module& module) {
  Tensors all;
  for (const auto& item : module.named_parameters()) all.emplace(item.key(), item.value());
  return all;
}

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(torch::nn::Linear(64, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
}

std::vector<std::string> quantized_modes() {
  std::vector<std::string> names;
  for (const Mode& mode : modes())
    if (mode.traits.frozen_weights) names.push_back(mode.name);
  return names;
}

class QuantizedModes : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
};

TEST_F(QuantizedModes, Q53_NamesMapToFormats) {
  const auto weight = [](const std::string& mode) {
    torch::nn::Linear layer(256, 64);
    make_precision(mode, at::kCPU)->convert_module(*layer);
    return packed_data(layer->weight)->description();
  };
  EXPECT_THAT(quantized_modes(), ElementsAre("nf4", "nf4-dq", "fp4", "fp4-dq", "int8"));
  EXPECT_EQ(weight("nf4"), "nf4, blocks of 64");
  EXPECT_EQ(weight("nf4-dq"), "nf4-dq, blocks of 64");
  EXPECT_EQ(weight("fp4"), "fp4, blocks of 64");
  EXPECT_EQ(weight("fp4-dq"), "fp4-dq, blocks of 64");
  EXPECT_EQ(weight("int8"), "int8");
  torch::nn::Linear layer(256, 64);
  make_precision("fp4", at::kCPU, {.blocksize = 256})->convert_module(*layer);
  EXPECT_EQ(packed_data(layer->weight)->description(), "fp4, blocks of 256");
}

TEST_F(QuantizedModes, AnOptimizerWithoutAnythingToTrainIsRefused) {
  torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(false)));
  const auto mode = make_precision("nf4", at::kCPU);
  mode->convert_module(*net);
  torch::optim::SGD nothing(net->parameters(), 0.1);
  EXPECT_THAT(error_of([&] { mode->setup_optimizer(nothing); }),
              AllOf(HasSubstr("setup_optimizer: precision 'nf4' freezes the weights"),
                    HasSubstr("after LoRA adapters were added")));
  std::vector<at::Tensor> parameters = net->parameters();
  parameters.push_back(at::ones({2}).set_requires_grad(true));
  torch::optim::SGD something(parameters, 0.1);
  mode->setup_optimizer(something);
  at::Tensor paused = at::ones({2});
  torch::optim::SGD later({paused}, 0.1);
  mode->setup_optimizer(later);  // its parameter may train later
}

/// The threshold is 6 unless it is given: one large column of an input is computed in float32.
TEST_F(QuantizedModes, Q53_Int8HasTheThresholdOfLightning) {
  torch::nn::Linear own(64, 32), none(64, 32);
  const at::NoGradGuard no_grad;
  none->weight.copy_(own->weight);
  none->bias.copy_(own->bias);
  const at::Tensor plain = own->weight.clone();
  make_precision("int8", at::kCPU)->convert_module(*own);
  make_precision("int8", at::kCPU, {.llm_int8_threshold = 0})->convert_module(*none);
  at::Tensor x = at::randn({8, 64}).clamp(-3, 3);
  EXPECT_TRUE(same_bits(own(x), none(x))) << "nothing reaches 6";
  x.select(1, 5).fill_(6.5);
  EXPECT_FALSE(same_bits(own(x), none(x)));
  x.select(1, 5).fill_(60);
  const at::Tensor exact = at::linear(x, plain, own->bias);
  EXPECT_LT((own(x) - exact).abs().max().item<float>(), 0.3 * (none(x) - exact).abs().max().item<float>());
}

TEST_F(QuantizedModes, Q54_ERR20_DtypesAndTheirDefaults) {
  EXPECT_EQ(make_precision("int8", at::kCPU)->traits().compute, Format::kFloat16);
  EXPECT_EQ(make_precision("nf4", at::kCPU)->traits().compute, Format::kBFloat16);
  EXPECT_EQ(make_precision("nf4", at::kCPU, {.dtype = at::kHalf})->traits().compute, Format::kFloat16);
  EXPECT_EQ(traits_of(find_mode("nf4"), {.dtype = at::kFloat}).compute, Format::kFloat32);
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const auto make = [&] { make_precision("int8", at::kCPU, {.dtype = dtype}); };
    EXPECT_THROW(make(), c10::ValueError);
    EXPECT_THAT(error_of(make),
                AllOf(HasSubstr("'int8' with dtype"), HasSubstr(dtype == at::kFloat ? "float32" : "bfloat16"),
                      HasSubstr("it only works with float16")));
  }
  for (const auto dtype : {at::kDouble, at::kLong, at::kFloat8_e4m3fn})
    EXPECT_THAT(error_of([&] { make_precision("nf4", at::kCPU, {.dtype = dtype}); }),
                AllOf(HasSubstr("precision 'nf4' with dtype"), HasSubstr("choose one of them")));
}

TEST_F(QuantizedModes, OptionsOfOtherModesAreRefused) {
  const auto error = [](const std::string& mode, const PrecisionOptions& options) {
    return error_of([&] { make_precision(mode, at::kCPU, options); });
  };
  for (const std::string mode : {"32-true", "tf32-mixed", "64-true", "bf16-mixed", "16-true", "O2"}) {
    EXPECT_THAT(error(mode, {.ignore_modules = {"lm_head"}}),
                AllOf(HasSubstr("precision '" + mode + "' with ignore_modules 'lm_head'"),
                      HasSubstr("leave it out")));
    EXPECT_THAT(error(mode, {.blocksize = 64}),
                HasSubstr("with blocksize 64: only nf4, nf4-dq, fp4 and fp4-dq have a scale"));
    EXPECT_THAT(error(mode, {.dtype = at::kHalf}), HasSubstr("with dtype float16"));
    EXPECT_THAT(error(mode, {.llm_int8_threshold = 6}),
                HasSubstr("with llm_int8_threshold 6: only int8 and int8-training treat outliers"));
    EXPECT_THAT(error(mode, {.quantize_convolutions = false}),
                HasSubstr("with quantize_convolutions false: only nf4, nf4-dq, fp4, fp4-dq and int8 store"));
  }
  EXPECT_THAT(error("int8", {.blocksize = 64}), HasSubstr("no blocks"));
  EXPECT_THAT(error("nf4", {.llm_int8_threshold = 6}), HasSubstr("only int8 and int8-training"));
  EXPECT_THAT(error("nf4", {.blocksize = 48}), HasSubstr("blocks of 48 values"));
  EXPECT_THAT(error("int8", {.llm_int8_threshold = -1}), HasSubstr("llm_int8_threshold -1"));
  EXPECT_THAT(error("int8", {.llm_int8_threshold = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("llm_int8_threshold nan"));
  EXPECT_THAT(error("nf4", {.loss_scale = "128"}),
              HasSubstr("only fp16 gradients need a scale; leave it out, or give dtype float16"));
  EXPECT_THAT(error("nf4-dq", {.master_weights = true}), HasSubstr("not 16-bit"));
}

TEST_F(QuantizedModes, Q55_IgnoredLayersKeepTheirDtypeAndTrain) {
  const auto mode = make_precision("nf4", at::kCPU, {.ignore_modules = {"2"}});
  torch::nn::Sequential net = two_layers();
  mode->convert_module(*net);
  const at::Tensor head = net->named_parameters()["2.weight"];
  EXPECT_EQ(head.scalar_type(), at::kFloat);
  at::Tensor loss;
  {
    const Scope forward = mode->forward_context();
    loss = net->forward(mode->convert_input(at::randn({8, 64}))).sum();
  }
  mode->backward(loss);
  EXPECT_EQ(head.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(net->named_parameters()["0.bias"].grad().defined());
}

TEST_F(QuantizedModes, Q55_AnIgnoredNameWithoutALayerWarns) {
  const Warnings warnings;
  make_precision("nf4", at::kCPU, {.ignore_modules = {"lm_head", "0"}})->convert_module(*two_layers());
  EXPECT_THAT(warnings.texts,
              ElementsAre(AllOf(HasSubstr("'nf4'"), HasSubstr("ignore_modules 'lm_head' matches no"))));
}

TEST_F(QuantizedModes, Q55_IgnoringEveryLayerWarns) {
  for (const std::string mode : {"nf4", "int8", "int8-training"}) {
    const Warnings warnings;
    make_precision(mode, at::kCPU, {.ignore_modules = {"0", "2"}})->convert_module(*two_layers());
    EXPECT_THAT(warnings.texts, ElementsAre(AllOf(HasSubstr("precision '" + mode + "'"),
                                                  HasSubstr("ignore_modules '0, 2' leaves no layer"))));
  }
}

TEST_F(QuantizedModes, Q56_ERR21_WithoutALinearThereIsNothingToQuantize) {
  torch::nn::Sequential net(torch::nn::Conv1d(2, 2, 1));
  for (const std::string& name : quantized_modes()) {
    EXPECT_THROW(make_precision(name, at::kCPU)->convert_module(*net), c10::TypeError);
    make_precision(name, at::kCPU, {.quantize_convolutions = true})->convert_module(*net);
    EXPECT_TRUE(is_packed(net->parameters()[0]));
    net = torch::nn::Sequential(torch::nn::Conv1d(2, 2, 1));
  }
}

TEST_F(QuantizedModes, Q56_QuantizedWeightsAreLeftAsTheyAre) {
  const Warnings warnings;
  torch::nn::Sequential net = two_layers();
  const auto mode = make_precision("nf4-dq", at::kCPU);
  mode->convert_module(*net);
  const at::Tensor before = net->parameters()[0].dequantize();
  mode->convert_module(*net);
  EXPECT_TRUE(same_bits(net->parameters()[0].dequantize(), before));
  EXPECT_THAT(warnings.texts, IsEmpty());
  make_precision("int8", at::kCPU)->convert_module(*net);
  EXPECT_THAT(warnings.texts,
              ElementsAre(AllOf(HasSubstr("precision 'int8'"), HasSubstr("nf4-dq, blocks of 64 already"))));
}

TEST_F(QuantizedModes, Q56_InitModuleQuantizesAndRefusesIgnoredNames) {
  for (const std::string& name : quantized_modes()) {
    const auto mode = make_precision(name, at::kCPU);
    const auto net = init_module(*mode, at::kCPU, two_layers);
    EXPECT_TRUE(is_packed(net->parameters()[0])) << name;
    EXPECT_EQ(net->parameters()[1].scalar_type(), name == "int8" ? at::kHalf : at::kBFloat16);
    init_module(*mode, at::kCPU, [] { return torch::nn::LayerNorm(std::vector<int64_t>{4}); });
    const auto ignoring = make_precision(name, at::kCPU, {.ignore_modules = {"head"}});
    EXPECT_THAT(error_of([&] { init_module(*ignoring, at::kCPU, two_layers); }),
                AllOf(HasSubstr("'" + name + "' with ignore_modules 'head'"), HasSubstr("convert_module()")));
    EXPECT_EQ(c10::get_default_dtype_as_scalartype(), at::kFloat);
  }
}

TEST_F(QuantizedModes, AWholeModelIsMadeReadyForItsFileWithoutQuantizingIt) {
  for (const std::string& name : quantized_modes()) {
    const auto mode = make_precision(name, at::kCPU, {.ignore_modules = {"2"}});
    torch::nn::Sequential net = two_layers(), saved = two_layers();
    {
      const at::NoGradGuard no_grad;
      net->parameters()[0].fill_(std::numeric_limits<float>::quiet_NaN());  // quantizing would throw
    }
    mode->convert_empty(*net);
    EXPECT_EQ(mode->parameter_name(net->parameters()[0]), "0.weight") << name;
    EXPECT_TRUE(net->parameters()[0].dequantize().eq(0).all().item<bool>()) << name;
    EXPECT_FALSE(is_packed(net->parameters()[2])) << name << " ignores it";
    mode->convert_module(*saved);
    Tensors stored = named_parts(weights_of(*saved));
    PartsLoader(*net, stored).load();
    EXPECT_TRUE(same_bits(net->parameters()[0].dequantize(), saved->parameters()[0].dequantize())) << name;
  }
}

TEST_F(QuantizedModes, Q57_AFloatStateDictLoadsAsIfItWasQuantized) {
  for (const std::string& name : quantized_modes()) {
    const auto mode = make_precision(name, at::kCPU);
    torch::nn::Sequential net = two_layers(), other = two_layers();
    mode->convert_module(*net);
    Tensors stored = weights_of(*other);
    PartsLoader(*net, stored).load();
    EXPECT_EQ(stored.size(), 2U) << "the biases are left";
    mode->convert_module(*other);
    for (const auto& [key, tensor] : named_parts(weights_of(*other)))
      if (!key.ends_with("bias")) {
        EXPECT_TRUE(same_bits(named_parts(weights_of(*net)).at(key), tensor)) << name << " " << key;
      }
  }
}

TEST_F(QuantizedModes, Q58_AQuantizedStateDictLoadsBitForBit) {
  for (const std::string& name : quantized_modes()) {
    const auto mode = make_precision(name, at::kCPU);
    torch::nn::Sequential net = two_layers(), other = two_layers();
    mode->convert_module(*net);
    mode->convert_module(*other);
    Tensors stored = named_parts(weights_of(*other));
    PartsLoader(*net, stored).load();
    for (const auto& [key, tensor] : named_parts(weights_of(*other)))
      if (!key.ends_with("bias")) {
        EXPECT_TRUE(same_bits(named_parts(weights_of(*net)).at(key), tensor)) << name << " " << key;
      }
  }
}

TEST_F(QuantizedModes, Q59_InputsOutputsAndTheDefaultDtype) {
  for (const std::string& name : quantized_modes()) {
    const auto mode = make_precision(name, at::kCPU);
    const at::ScalarType dtype = name == "int8" ? at::kHalf : at::kBFloat16;
    EXPECT_EQ(mode->convert_input(at::ones(2)).scalar_type(), dtype);
    EXPECT_EQ(mode->convert_input(at::ones(2, at::kDouble)).scalar_type(), dtype);
    for (const auto other : {at::kLong, at::kBool, at::kComplexFloat})
      EXPECT_EQ(mode->convert_input(at::ones(2, other)).scalar_type(), other);
    EXPECT_EQ(mode->convert_output(at::ones(2, dtype)).scalar_type(), at::kFloat);
    try {
      const Scope forward = mode->forward_context();
      EXPECT_EQ(torch::ones(1).scalar_type(), dtype);
      throw std::runtime_error("body");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
  }
}

TEST_F(QuantizedModes, Float32ProductsNeedNoAutocast) {
  const auto mode = make_precision("nf4", at::kCPU, {.dtype = at::kFloat});
  torch::nn::Sequential net = two_layers();
  mode->convert_module(*net);
  const at::Tensor x = at::randn({4, 64});
  const Scope forward = mode->forward_context();
  EXPECT_TRUE(mode->convert_input(x).is_same(x));
  EXPECT_EQ(net->forward(x).scalar_type(), at::kFloat);
  EXPECT_EQ(at::randn({2, 2}).mm(at::randn({2, 2})).scalar_type(), at::kFloat);
}

TEST_F(QuantizedModes, ProductsAreInTheModesDtypeOutsideOfItsForwardPassToo) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    torch::nn::Linear layer(torch::nn::LinearOptions(64, 32).bias(false));
    make_precision("nf4", at::kCPU, {.dtype = dtype})->convert_module(*layer);
    const at::Tensor x = at::randn({4, 64});
    EXPECT_TRUE(same_bits(layer(x), layer(x.to(dtype)).to(at::kFloat))) << dtype;
  }
}

/// Layers in float meet inputs in bf16 or fp16 here.
TEST_F(QuantizedModes, ERR19_EveryKindOfLayerRunsBesideThemOnTheCpu) {
  for (const std::string& name : quantized_modes()) {
    const auto mode = make_precision(name, at::kCPU);
    torch::nn::Sequential net(
        torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 8, 3).padding(1)), torch::nn::BatchNorm1d(8),
        torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(8 * 16, 32),
        torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})), torch::nn::Linear(32, 4));
    mode->convert_module(*net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    mode->setup_optimizer(optimizer);
    const at::Tensor x = at::randn({8, 4, 16}), target = at::randint(4, {8}, at::kLong);
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const Scope forward = mode->forward_context();
        loss = at::cross_entropy_loss(net->forward(mode->convert_input(x)), target);
      }
      mode->backward(loss);
      mode->optimizer_step(optimizer);
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.7 * first) << name;
    EXPECT_EQ(net->parameters()[0].grad().scalar_type(), at::kFloat) << "the rest trains in float32";
  }
}

TEST_F(QuantizedModes, AFp16ScaleIsThereOnRequest) {
  EXPECT_FALSE(make_precision("int8", at::kCPU)->loss_scale().defined());
  const auto mode = make_precision("int8", at::kCPU, {.loss_scale = "128"});
  torch::nn::Sequential net = two_layers();
  mode->convert_module(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  EXPECT_EQ(mode->loss_scale().item<double>(), 128);
  EXPECT_TRUE(mode->traits().scales_loss);
  EXPECT_TRUE(traits_of(find_mode("int8"), {.loss_scale = "128"}).scales_loss);
}

TEST_F(QuantizedModes, LbfgsTakesTheParametersThatTrain) {
  const auto mode = make_precision("nf4", at::kCPU);
  torch::nn::Sequential net = two_layers();
  mode->convert_module(*net);
  torch::optim::LBFGS all(net->parameters(), 1.0);
  EXPECT_THAT(error_of([&] { mode->setup_optimizer(all); }),
              AllOf(HasSubstr("nf4: LBFGS"), HasSubstr("'0.weight' is quantized")));
  std::vector<at::Tensor> trained = {net->parameters()[1], net->parameters()[3]};
  torch::optim::LBFGS some(trained, 1.0);
  mode->setup_optimizer(some);
  const at::Tensor x = at::randn({8, 64}), before = trained[1].detach().clone();
  mode->optimizer_step(some, [&] {
    some.zero_grad();
    const at::Tensor loss = net->forward(x).square().mean();
    mode->backward(loss);
    return loss;
  });
  EXPECT_FALSE(same_bits(trained[1], before));
}

TEST_F(QuantizedModes, LbfgsIsRefusedWithALossScale) {
  const auto mode = make_precision("nf4", at::kCPU, {.loss_scale = "128", .dtype = at::kHalf});
  torch::nn::Sequential net = two_layers();
  mode->convert_module(*net);
  torch::optim::LBFGS lbfgs({net->parameters()[1]}, 1.0);
  EXPECT_THAT(error_of([&] { mode->setup_optimizer(lbfgs); }), HasSubstr("a gradient scaler cannot follow"));
}

TEST_F(QuantizedModes, ModulesMoveCopyAndPrint) {
  for (const std::string& name : quantized_modes()) {
    torch::nn::Sequential net = two_layers();
    make_precision(name, at::kCPU)->convert_module(*net);
    const at::Tensor x = at::randn({4, 64}), y = net->forward(x);
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    EXPECT_TRUE(is_packed(copy->parameters()[0]));
    EXPECT_TRUE(same_bits(copy->forward(x), y)) << name;
    net->to(at::kCPU);
    EXPECT_TRUE(same_bits(net->forward(x), y)) << name;
    net->to(at::kHalf);
    EXPECT_EQ(net->parameters()[0].scalar_type(), at::kHalf);
    EXPECT_TRUE(is_packed(net->parameters()[0]));
    EXPECT_EQ(net->forward(x.to(at::kHalf)).scalar_type(), at::kHalf);
    EXPECT_THAT(c10::str(net->parameters()[0]), HasSubstr("[ CPU")) << "the dequantized values are printed";
  }
}

TEST_F(QuantizedModes, AveragesLeaveThemOut) {
  torch::nn::Sequential net = two_layers();
  const auto mode = make_precision("nf4-dq", at::kCPU);
  mode->convert_module(*net);
  ExponentialMovingAverage average(*net);
  const at::NoGradGuard no_grad;
  net->named_parameters()["0.bias"].add_(1);
  average.update();
  EXPECT_EQ(average.named_averages().size(), 2U) << "the biases";
}

TEST_F(QuantizedModes, TheBytesOfAModelAreThoseOfItsCodes) {
  const auto bytes = [](const std::string& name, const PrecisionOptions& options = {}) {
    torch::nn::Linear layer(1024, 1024);
    make_precision(name, at::kCPU, options)->convert_module(*layer);
    return static_cast<double>(layer->weight.storage().nbytes()) * 8 / (1024 * 1024);
  };
  EXPECT_DOUBLE_EQ(bytes("nf4"), 4.5);
  EXPECT_NEAR(bytes("nf4-dq"), 4.127, 0.001);
  EXPECT_DOUBLE_EQ(bytes("fp4", {.blocksize = 4096}), 4 + 32.0 / 4096);
  EXPECT_NEAR(bytes("int8"), 8.03, 0.01);
}

TEST(QuantizedModesOnCuda, CudaComputesAsTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  torch::manual_seed(0);
  for (const std::string& name : quantized_modes()) {
    torch::nn::Sequential net = two_layers();
    make_precision(name, at::kCPU)->convert_module(*net);
    const at::Tensor x = at::randn({8, 64}), y = net->forward(x);
    net->to(at::kCUDA);
    // The sums have another order, and the codes of an input may differ by one.
    EXPECT_TRUE(at::allclose(net->forward(x.to(at::kCUDA)).cpu(), y, 2e-2, 2e-2)) << name;
  }
}

}  // namespace
}  // namespace mantissa::quantized_test
