#include <functional>

#include <ATen/autocast_mode.h>

#include "mantissa/io/weights.h"
#include "mantissa/lora/lora_weight_internal.h"
#include "mantissa/lora/test_support_internal.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa::lora_weight_test {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

/// A layer of 5 outputs and 7 inputs with one adapter, computed by the adapter's weight and by formulas.
struct Case {
  explicit Case(bool is_packed, bool use_dora, bool has_bias = true)
      : layer(torch::nn::LinearOptions(7, 5).bias(has_bias)) {
    if (is_packed) replace_weight(layer->weight, pack(layer->weight));
    plain = mantissa::dequantize(layer->weight).detach().clone();
    net->push_back("layer", layer);
    lora.emplace(*net, LoraConfig{.r = 3, .lora_alpha = 6, .use_dora = use_dora});
    randomize(*net);
    a = parameter(*net, "layer.lora_A.default.weight");
    b = parameter(*net, "layer.lora_B.default.weight");
    if (use_dora) magnitude = parameter(*net, "layer.lora_magnitude_vector.default.weight");
  }
  /// The adapted weight by the formulas of the papers.
  Tensor weight() const {
    const Tensor sum = plain + 2 * b.matmul(a);
    if (!magnitude.defined()) return sum;
    const Tensor lengths = (plain + 2 * b.matmul(a)).detach().norm(2, 1);
    return sum * (magnitude / lengths).unsqueeze(1);
  }
  Tensor expected(const Tensor& x) const {
    const Tensor y = x.matmul(weight().t());
    return layer->bias.defined() ? y + layer->bias : y;
  }
  std::vector<Tensor> trained(const Tensor& x) const {
    std::vector<Tensor> all{x, a, b};
    if (magnitude.defined()) all.push_back(magnitude);
    return all;
  }

  torch::nn::Linear layer;
  torch::nn::Sequential net;
  Tensor plain, a, b, magnitude;
  std::optional<LoraModel> lora;
};

class LoraWeight : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  void SetUp() override { torch::manual_seed(3); }
  Case make() { return Case(std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

using F = std::function<Tensor(const Tensor&, const Tensor&)>;

TEST_P(LoraWeight, Q26_ValuesAndGradientsAreThoseOfTheFormulas) {
  Case c = make();
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{7}, {1, 7}, {4, 7}, {2, 3, 7}}) {
    const Tensor x = torch::randn(sizes).set_requires_grad(true);
    const Tensor y = torch::nn::Linear(c.layer)(x), expected = c.expected(x);
    ASSERT_EQ(y.sizes(), expected.sizes());
    // The products are summed in another order.
    EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-5)) << at::IntArrayRef(sizes);
    const Tensor upstream = torch::randn_like(y);
    const auto got = torch::autograd::grad({y}, c.trained(x), {upstream});
    const auto want = torch::autograd::grad({expected}, c.trained(x), {upstream});
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::allclose(got[i], want[i], 1e-4, 1e-5)) << i;
  }
}

TEST_P(LoraWeight, EveryProductComputesWithTheAdapter) {
  Case c = make();
  const Tensor& w = c.layer->weight;
  const auto check = [&](const Tensor& input, const F& f, const char* name) {
    const Tensor x = input.set_requires_grad(true);
    const Tensor y = f(x, w), expected = f(x, c.weight());
    EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-5)) << name;
    const auto got = torch::autograd::grad({y.square().sum()}, c.trained(x));
    const auto want = torch::autograd::grad({expected.square().sum()}, c.trained(x));
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::allclose(got[i], want[i], 1e-3, 1e-4)) << name << i;
  };
  const Tensor x = torch::randn({4, 7}), y = torch::randn({4, 5});
  check(
      x, [](auto& a, auto& m) { return torch::linear(a, m); }, "linear");
  check(
      x, [](auto& a, auto& m) { return torch::matmul(a, m.t()); }, "matmul");
  check(
      x, [](auto& a, auto& m) { return torch::addmm(torch::ones({5}), a, m.t()); }, "addmm");
  check(
      x,
      [](auto& a, auto& m) {
        return torch::einsum("ti,oi->to", {a, m});
      },
      "einsum");
  check(
      x,
      [](auto& a, auto& m) {
        return torch::einsum("ti,oi->t", {a, m});
      },
      "einsum of values");
  check(
      x.t().contiguous(), [](auto& a, auto& m) { return torch::matmul(m, a); }, "from the left");
  check(
      y, [](auto& a, auto& m) { return torch::matmul(a, m); }, "transposed");
  check(
      x[0].clone(), [](auto& a, auto& m) { return torch::mv(m, a); }, "mv");
  check(
      x.clone(), [](auto& a, auto& m) { return a.sum() * mantissa::dequantize(m); }, "dequantize");
}

TEST_P(LoraWeight, AnEmptyBatchHasAnEmptyResultAndZeroGradients) {
  Case c = make();
  const Tensor x = torch::randn({0, 7}).set_requires_grad(true);
  const Tensor y = torch::nn::Linear(c.layer)(x);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 5}));
  const auto gradients = torch::autograd::grad({y.sum()}, c.trained(x));
  EXPECT_EQ(gradients[0].sizes(), x.sizes());
  for (size_t i = 1; i < gradients.size(); ++i) EXPECT_EQ(gradients[i].abs().sum().item<float>(), 0);
}

TEST_P(LoraWeight, WithoutGradientsTheValuesAreTheSame) {
  Case c = make();
  torch::nn::Linear layer = c.layer;
  const Tensor x = torch::randn({4, 7}), expected = layer(x);
  {
    const at::NoGradGuard no_grad;
    const Tensor y = layer(x);
    EXPECT_FALSE(y.requires_grad());
    EXPECT_TRUE(at::equal(y, expected));
  }
  const c10::InferenceMode inference;
  const Tensor y = layer(x);
  EXPECT_TRUE(y.is_inference());
  EXPECT_TRUE(at::equal(y, expected));
}

TEST_P(LoraWeight, SixteenBitInputsGiveSixteenBitResultsAndFloat32Gradients) {
  Case c = make();
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const Tensor x = torch::randn({4, 7});
    const Tensor y = torch::linear(x.to(dtype), c.layer->weight);
    EXPECT_EQ(y.scalar_type(), dtype);
    // bfloat16 has 8 bits, and the product is rounded four times.
    const double tolerance = dtype == at::kDouble ? 1e-5 : 3e-2;
    EXPECT_TRUE(at::allclose(y.to(at::kFloat), x.matmul(c.weight().t()), tolerance, tolerance)) << dtype;
    const auto gradients = torch::autograd::grad({y.sum()}, {c.a, c.b});
    EXPECT_EQ(gradients[0].scalar_type(), at::kFloat);
    EXPECT_GT(gradients[0].abs().sum().item<float>(), 0);
  }
}

TEST_P(LoraWeight, AutocastComputesIn16Bits) {
  Case c = make();
  torch::nn::Linear layer = c.layer;
  const Tensor x = torch::randn({4, 7});
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = layer(x), three = layer(x.view({2, 2, 7}));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), c.expected(x), 4e-2, 4e-2));
  EXPECT_TRUE(at::allclose(three.to(at::kFloat).view({4, 5}), c.expected(x), 4e-2, 4e-2));
  y.sum().backward();
  EXPECT_EQ(c.a.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(is_packed(c.layer->weight));
}

TEST_P(LoraWeight, GradientsCanBeDifferentiatedAgain) {
  Case c = make();
  const Tensor x = torch::randn({4, 7}).set_requires_grad(true);
  const auto penalty = [&](const Tensor& y) {
    const auto first = torch::autograd::grad({y.square().sum()}, {x}, {}, true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum()}, {c.a, c.b});
  };
  const auto got = penalty(torch::linear(x, c.layer->weight)), want = penalty(x.matmul(c.weight().t()));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::allclose(got[i], want[i], 1e-3, 1e-3)) << i;
}

TEST_P(LoraWeight, DequantizedAndPrintedValuesContainTheAdapter) {
  Case c = make();
  EXPECT_TRUE(at::allclose(mantissa::dequantize(c.layer->weight), c.weight(), 1e-5, 1e-6));
  std::stringstream printed, expected;
  printed << c.layer->weight.detach();
  expected << mantissa::dequantize(c.layer->weight).detach().to(at::kDouble);
  EXPECT_EQ(printed.str().substr(0, 12), expected.str().substr(0, 12));
}

INSTANTIATE_TEST_SUITE_P(PlainAndPacked, LoraWeight, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Packed" : "Plain") +
                                  (std::get<1>(info.param) ? "Dora" : "Lora");
                         });

class LoraWeights : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(5); }
};

TEST_F(LoraWeights, DropoutActsInTrainingModeOnly) {
  for (const bool use_dora : {false, true}) {
    torch::nn::Sequential net(torch::nn::Linear(64, 32));
    const Tensor x = torch::randn({16, 64});
    const LoraModel lora(*net, {.r = 4, .lora_dropout = 0.5, .use_dora = use_dora});
    randomize(*net);
    net->train();
    EXPECT_FALSE(at::equal(net->forward(x), net->forward(x)));
    // Dropping half and doubling the rest is right on average.
    Tensor mean = torch::zeros({16, 32});
    for (int i = 0; i < 600; ++i) mean += net->forward(x).detach() / 600;
    net->eval();
    EXPECT_TRUE(at::equal(net->forward(x), net->forward(x)));
    const Tensor difference = (mean - net->forward(x)).abs();
    EXPECT_LT(difference.mean().item<float>(), 0.2) << use_dora;
  }
}

TEST_F(LoraWeights, DropoutOfDoraConcernsTheBaseInTheAdapterToo) {
  // PEFT's rule: y = W x + (g - 1) W d(x) + g s B A d(x), with g = magnitude / length and a dropped d(x).
  Case c(false, true, /*has_bias=*/false);
  torch::nn::Linear layer(7, 5);
  torch::nn::Sequential net(layer);
  LoraModel lora(*net, {.r = 3, .lora_alpha = 6, .lora_dropout = 0.5, .use_dora = true});
  randomize(*net);
  const Tensor w = base_weight(layer->weight), a = parameter(*net, "0.lora_A.default.weight"),
               b = parameter(*net, "0.lora_B.default.weight"),
               m = parameter(*net, "0.lora_magnitude_vector.default.weight");
  const Tensor x = torch::randn({4, 7});
  torch::manual_seed(9);
  const Tensor y = layer(x);
  torch::manual_seed(9);
  const Tensor d = torch::dropout(x, 0.5, true);
  const Tensor g = m / (w + 2 * b.matmul(a)).norm(2, 1);
  const Tensor expected =
      x.matmul(w.t()) + (g - 1) * d.matmul(w.t()) + g * 2 * d.matmul(a.t()).matmul(b.t()) + layer->bias;
  EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-5));
}

TEST_F(LoraWeights, ARowOfZerosStaysFiniteUnderDora) {
  torch::nn::Linear layer(7, 5);
  torch::nn::Sequential net(layer);
  {
    const at::NoGradGuard no_grad;
    layer->weight[2].zero_();
  }
  const Tensor x = torch::randn({4, 7}), before = layer(x).detach();
  const LoraModel lora(*net, {.use_dora = true});
  const Tensor y = layer(x);
  EXPECT_TRUE(at::allclose(y, before, 1e-5, 1e-6));
  y.square().sum().backward();
  for (const Tensor& p : net->parameters())
    EXPECT_TRUE(!p.grad().defined() || p.grad().isfinite().all().item<bool>());
}

TEST_F(LoraWeights, NaNOfAnInputReachesTheOutput) {
  Case c(false, false);
  Tensor x = torch::zeros({2, 7});
  x[1][3] = NAN;
  const Tensor y = torch::nn::Linear(c.layer)(x);
  EXPECT_TRUE(y[0].isfinite().all().item<bool>());
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
}

TEST_F(LoraWeights, CloningSaysWhatToDo) {
  Case c(false, false);
  EXPECT_THAT(error_of([&] { c.layer->clone(); }), AllOf(HasSubstr("LoRA 'default'"), HasSubstr("unload()")));
  EXPECT_THAT(error_of([&] { c.net->clone(); }), HasSubstr("unload()"));
  c.lora->unload();
  EXPECT_NO_THROW(c.net->clone());
}

TEST_F(LoraWeights, ConvertingAModelConvertsTheBaseAndKeepsAdaptersInFloat32) {
  Case c(false, true);
  const Tensor x = torch::randn({4, 7}), expected = c.layer(x).detach();
  c.net->to(at::kBFloat16);
  EXPECT_EQ(base_weight(c.layer->weight).scalar_type(), at::kBFloat16);
  EXPECT_EQ(c.layer->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(c.layer->bias.scalar_type(), at::kBFloat16);
  for (const Tensor& p : {c.a, c.b, c.magnitude}) EXPECT_EQ(p.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(c.layer(x.to(at::kBFloat16)).to(at::kFloat), expected, 5e-2, 5e-2));
  EXPECT_THAT(error_of([&] { c.net->to(at::kDouble); }), HasSubstr("replace_weight()"));
  EXPECT_EQ(c.layer->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(c.a.scalar_type(), at::kFloat);
}

TEST_F(LoraWeights, FilesOfWeightsHoldTheBaseAndTheAdapter) {
  for (const bool is_packed_base : {false, true}) {
    Case saved(is_packed_base, true), loaded(is_packed_base, true);
    const Tensor x = torch::randn({4, 7});
    auto stored = named_parts(named_weights(*saved.net));
    EXPECT_EQ(stored.count("layer.weight"), 1u);
    EXPECT_EQ(stored.count("layer.weight.scale"), is_packed_base ? 1u : 0u);
    EXPECT_EQ(stored.count("layer.lora_A.default.weight"), 1u);
    auto rest = stored;
    PartsLoader packed(*loaded.net, rest);
    load_weights(plain_weights(named_weights(*loaded.net)), rest, "memory");
    packed.load();
    EXPECT_TRUE(at::equal(loaded.layer(x), saved.layer(x)));
    EXPECT_FALSE(loaded.layer->weight.requires_grad());
  }
}

TEST_F(LoraWeights, APlainBaseTakesValuesOfAnotherDtype) {
  Case c(false, false);
  std::map<std::string, Tensor> stored{{"layer.weight", torch::ones({5, 7}, at::kBFloat16)}};
  PartsLoader(*c.net, stored).load();
  EXPECT_TRUE(at::equal(base_weight(c.layer->weight), torch::ones({5, 7})));
  stored = {{"layer.weight", torch::ones({5, 6})}};
  EXPECT_THAT(error_of([&] { PartsLoader(*c.net, stored); }),
              AllOf(HasSubstr("[5, 6]"), HasSubstr("[5, 7]")));
  stored = {{"layer.weight", torch::ones({5, 7}, at::kByte)}};
  EXPECT_THAT(error_of([&] { PartsLoader(*c.net, stored); }), HasSubstr("Byte"));
}

TEST_F(LoraWeights, StockTorchSaveSaysWhatToDo) {
  Case c(false, false);
  std::stringstream file;
  EXPECT_THAT(error_of([&] { torch::save(c.layer, file); }),
              AllOf(HasSubstr("LoRA 'default' on Float"), HasSubstr("named_parts()")));
}

TEST_F(LoraWeights, AttentionOfLibtorchComputesWithIt) {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2));
  const LoraModel lora(*attention, {.r = 2});
  EXPECT_THAT(lora.layers(), testing::ElementsAre("out_proj"));
  randomize(*attention);
  const Tensor x = torch::randn({3, 2, 8});
  const Tensor y = std::get<0>(attention(x, x, x));
  y.sum().backward();
  EXPECT_GT(parameter(*attention, "out_proj.lora_B.default.weight").grad().abs().sum().item<float>(), 0);
}

TEST_F(LoraWeights, AnotherBaseKeepsTheAdapter) {
  Case c(false, false);
  const Tensor x = torch::randn({4, 7});
  const Tensor packed = pack(c.plain);
  replace_weight(c.layer->weight, with_base_weight(c.layer->weight, packed));
  c.plain = packed.dequantize();
  EXPECT_EQ(packed_data(base_weight(c.layer->weight)), packed_data(packed));
  EXPECT_TRUE(at::allclose(c.layer(x), c.expected(x), 1e-5, 1e-5));
  EXPECT_EQ(c.layer->weight.storage().nbytes(), packed.storage().nbytes()) << "the adapter is not counted";
  EXPECT_THROW(with_base_weight(c.layer->weight, torch::zeros({3, 3})), c10::ValueError);
  EXPECT_TRUE(base_weight(c.a).is_same(c.a));
}

}  // namespace
}  // namespace mantissa::lora_weight_test
