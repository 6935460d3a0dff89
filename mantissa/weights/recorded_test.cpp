// Tests of weights that record gradients themselves, and of weights that wrap another weight.
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::recorded_test {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

/// A frozen weight, the base, times a number that trains.
class Scaled final : public PackedData {
 public:
  Scaled(Tensor base, Tensor scale) : base_(base.detach()), scale_(std::move(scale)) {}
  std::string description() const override { return "scaled"; }
  at::IntArrayRef sizes() const override { return base_.sizes(); }
  Parts parts() const override { return {{"", base_}}; }
  PackedDataPtr with_parts(Parts parts) const override { return with_base(parts.at("")); }
  Tensor dequantize(at::ScalarType dtype) const override {
    return (mantissa::dequantize(base_) * scale_).to(dtype);
  }
  bool records_gradients() const override { return true; }
  PackedDataPtr with_dtype(at::ScalarType dtype) const override { return with_base(base_.to(dtype)); }
  void check_clone() const override {
    TORCH_CHECK_NOT_IMPLEMENTED(!refuses_clones, "clone: scaled weights are not cloned");
  }
  Tensor base() const override { return base_; }
  PackedDataPtr with_base(const Tensor& base) const override {
    return std::make_shared<Scaled>(base, scale_);
  }

  bool refuses_clones = false;

 private:
  Tensor base_, scale_;
};

class RecordedWeights : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }

  template <typename F>
  void expect_gradient(const Tensor& x, const F& f) {
    const Tensor got = torch::autograd::grad({f(x, weight_).square().sum()}, {scale_})[0];
    const Tensor want = torch::autograd::grad({f(x, plain_ * scale_).square().sum()}, {scale_})[0];
    EXPECT_GT(want.abs().item<float>(), 1e-3);
    EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-4));
  }

  Tensor plain_ = torch::randn({4, 8});
  Tensor scale_ = torch::full({}, 1.5).set_requires_grad(true);
  Tensor weight_ = make_packed_weight(std::make_shared<Scaled>(plain_, scale_));
};

TEST_F(RecordedWeights, EveryProductGivesTheNumberAGradient) {
  const Tensor x = torch::randn({3, 8});
  expect_gradient(x, [](const Tensor& a, const Tensor& w) { return torch::linear(a, w); });
  expect_gradient(x, [](const Tensor& a, const Tensor& w) { return torch::linear(a, w, torch::ones({4})); });
  expect_gradient(x, [](const Tensor& a, const Tensor& w) { return torch::mm(a, w.t()); });
  expect_gradient(x,
                  [](const Tensor& a, const Tensor& w) { return torch::addmm(torch::ones({4}), a, w.t()); });
  expect_gradient(x.t(), [](const Tensor& a, const Tensor& w) { return torch::matmul(w, a); });
  expect_gradient(x, [](const Tensor& a, const Tensor& w) { return torch::einsum("ti,oi->ot", {a, w}); });
  expect_gradient(x, [](const Tensor& a, const Tensor& w) { return torch::einsum("ti,oi->i", {a, w}); });
  expect_gradient(torch::randn({3, 4}), [](const Tensor& a, const Tensor& w) { return torch::mm(a, w); });
  expect_gradient(x, [](const Tensor&, const Tensor& w) { return mantissa::dequantize(w); });
  expect_gradient(torch::tensor({3, 0, 3}),
                  [](const Tensor& a, const Tensor& w) { return torch::embedding(w, a); });
}

TEST_F(RecordedWeights, EmptyInputsAndInputsWithoutAGradientAreRecordedToo) {
  const Tensor y = torch::linear(torch::randn({0, 8}), weight_);
  EXPECT_EQ(torch::autograd::grad({y.sum()}, {scale_})[0].item<float>(), 0);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(torch::linear(torch::randn({3, 8}), weight_).requires_grad());
}

TEST_F(RecordedWeights, AddingABiasInPlaceKeepsTheGraph) {
  torch::nn::Linear layer(8, 4);
  replace_weight(layer->weight, weight_);
  layer(torch::randn({2, 3, 8})).sum().backward();  // libtorch's Linear adds the bias in place
  EXPECT_TRUE(scale_.grad().defined());
  EXPECT_TRUE(layer->bias.grad().defined());
}

TEST_F(RecordedWeights, ConversionReachesTheBase) {
  torch::nn::Linear layer(8, 4);
  replace_weight(layer->weight, weight_);
  layer->to(at::kHalf);
  EXPECT_EQ(layer->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(base_weight(layer->weight).scalar_type(), at::kHalf);
  EXPECT_EQ(weight_.scalar_type(), at::kFloat) << "conversion makes new data";
  const Tensor transposed = layer->weight.t().to(at::kFloat);
  EXPECT_TRUE(is_packed(transposed));
  EXPECT_EQ(transposed.sizes(), at::IntArrayRef({8, 4}));
  EXPECT_EQ(packed_data(transposed)->base().scalar_type(), at::kFloat);
}

TEST_F(RecordedWeights, ClonesMayBeRefused) {
  EXPECT_EQ(packed_data(weight_.clone()), packed_data(weight_));
  const auto data = std::make_shared<Scaled>(plain_, scale_);
  data->refuses_clones = true;
  torch::nn::Linear layer(8, 4);
  replace_weight(layer->weight, make_packed_weight(data));
  EXPECT_THAT(error_of([&] { layer->clone(); }), HasSubstr("not cloned"));
}

TEST_F(RecordedWeights, TheBaseIsExchangedUnderTheWrapper) {
  EXPECT_TRUE(at::equal(base_weight(weight_), plain_));
  EXPECT_TRUE(base_weight(plain_).is_same(plain_));
  EXPECT_TRUE(is_adapted(weight_));
  EXPECT_FALSE(is_adapted(plain_) || is_adapted(at::Tensor()));
  const Tensor packed = pack(plain_);
  EXPECT_TRUE(base_weight(packed).is_same(packed));
  EXPECT_FALSE(is_adapted(packed));
  const Tensor around = with_base_weight(weight_, packed);
  EXPECT_EQ(packed_data(around)->description(), "scaled");
  EXPECT_EQ(packed_data(base_weight(around)), packed_data(packed));
  EXPECT_TRUE(with_base_weight(plain_, packed).is_same(packed));
  EXPECT_THAT(error_of([&] { with_base_weight(weight_, torch::zeros({3})); }), HasSubstr("same sizes"));
}

TEST_F(RecordedWeights, ReplacesAParameterThatTheCallerHolds) {
  torch::nn::Linear layer(8, 4);
  replace_weight(layer->weight, weight_);
  EXPECT_TRUE(is_packed(layer->weight));
  replace_weight(layer->weight, plain_);
  EXPECT_TRUE(at::equal(layer->weight, plain_));
  EXPECT_FALSE(layer->weight.requires_grad());
  EXPECT_THAT(error_of([&] { replace_weight(layer->weight, torch::zeros({3})); }),
              AllOf(HasSubstr("the parameter has shape [4, 8]"), HasSubstr("[3]")));
}

}  // namespace
}  // namespace mantissa::recorded_test
