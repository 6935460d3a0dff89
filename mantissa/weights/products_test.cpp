#include <limits>

#include <ATen/autocast_mode.h>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::products_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class PackedProducts : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }

  /// Expects the same values and the same gradients of `x` for the packed weight and its plain values.
  template <typename F>
  void expect_as_plain(const at::Tensor& x, const F& f) {
    const at::Tensor a = x.detach().clone().set_requires_grad(true), b = a.detach().clone();
    b.set_requires_grad(true);
    const at::Tensor y = f(a, weight_), expected = f(b, plain_);
    ASSERT_EQ(y.sizes(), expected.sizes());
    ASSERT_EQ(y.scalar_type(), expected.scalar_type());
    // A product may be computed by another one, such as a transposed one, which adds in a different order.
    EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-6));
    const at::Tensor upstream = torch::randn_like(y);
    y.backward(upstream);
    expected.backward(upstream);
    EXPECT_TRUE(at::allclose(a.grad(), b.grad(), 1e-5, 1e-6));
  }

  at::Tensor weight_ = pack(torch::randn({4, 8}));
  at::Tensor plain_ = weight_.dequantize();
};

TEST_F(PackedProducts, LinearLayersTakeOneTwoAndThreeDimensions) {
  torch::nn::Linear layer(8, 4), plain(8, 4);
  replace_weight(*layer, "weight", weight_);
  replace_weight(*plain, "weight", plain_);
  replace_weight(*plain, "bias", layer->bias.clone());
  plain->bias.set_requires_grad(true);
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{8}, {3, 8}, {2, 3, 8}, {2, 1, 3, 8}}) {
    const at::Tensor a = torch::randn(sizes).set_requires_grad(true);
    const at::Tensor b = a.detach().clone().set_requires_grad(true);
    const at::Tensor y = layer(a), expected = plain(b);
    EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-6)) << at::IntArrayRef(sizes);
    layer->zero_grad();
    plain->zero_grad();
    y.pow(2).sum().backward();
    expected.pow(2).sum().backward();
    EXPECT_TRUE(at::allclose(a.grad(), b.grad(), 1e-5, 1e-5)) << at::IntArrayRef(sizes);
    EXPECT_TRUE(at::allclose(layer->bias.grad(), plain->bias.grad(), 1e-5, 1e-5)) << at::IntArrayRef(sizes);
    EXPECT_FALSE(layer->weight.grad().defined());
  }
  EXPECT_EQ(rows_of(weight_).products, 4);
  EXPECT_EQ(rows_of(weight_).transposed_products, 4) << "one for each backward pass";
}

TEST_F(PackedProducts, EachOperationEqualsThatOfThePlainWeight) {
  const at::Tensor x = torch::randn({3, 8}), y = torch::randn({3, 4});
  expect_as_plain(x, [](const auto& a, const auto& w) { return torch::linear(a, w); });
  expect_as_plain(x, [](const auto& a, const auto& w) { return torch::linear(a, w, torch::ones({4})); });
  expect_as_plain(x, [](const auto& a, const auto& w) { return torch::matmul(a, w.t()); });
  expect_as_plain(x, [](const auto& a, const auto& w) { return torch::matmul(a, w.transpose(-1, 0)); });
  expect_as_plain(x, [](const auto& a, const auto& w) { return torch::matmul(a, w.permute({1, 0})); });
  expect_as_plain(x, [](const auto& a, const auto& w) { return torch::matmul(a, w.mT()); });
  expect_as_plain(y, [](const auto& a, const auto& w) { return torch::matmul(a, w); });
  expect_as_plain(y, [](const auto& a, const auto& w) { return a.mm(w); });
  expect_as_plain(y[0], [](const auto& a, const auto& w) { return torch::matmul(a, w); });
  expect_as_plain(torch::randn({2, 3, 4}), [](const auto& a, const auto& w) { return torch::matmul(a, w); });
}

TEST_F(PackedProducts, AWeightMayBeTheLeftFactor) {
  const at::Tensor x = torch::randn({8, 3});
  expect_as_plain(x, [](const auto& a, const auto& w) { return torch::matmul(w, a); });
  expect_as_plain(x, [](const auto& a, const auto& w) { return w.mm(a); });
  expect_as_plain(x.t()[0], [](const auto& a, const auto& w) { return w.mv(a); });
  expect_as_plain(x.t()[0], [](const auto& a, const auto& w) { return torch::matmul(w, a); });
  expect_as_plain(torch::randn({4, 3}), [](const auto& a, const auto& w) { return w.t().mm(a); });
  expect_as_plain(torch::randn({2, 8, 3}), [](const auto& a, const auto& w) { return torch::matmul(w, a); });
}

TEST_F(PackedProducts, AddmmScalesAndBroadcasts) {
  const at::Tensor x = torch::randn({3, 8});
  for (const at::Tensor& addend :
       {torch::randn({4}), torch::randn({3, 4}), torch::randn({1}), torch::randn({3, 1})})
    for (const double beta : {0.0, 1.0, 0.5})
      for (const double alpha : {1.0, -2.0})
        expect_as_plain(
            x, [&](const auto& a, const auto& w) { return torch::addmm(addend, a, w.t(), beta, alpha); });
  const at::Tensor nan = torch::full({4}, kNaN);
  EXPECT_FALSE(torch::addmm(nan, x, weight_.t(), 0).isnan().any().item<bool>()) << "as in libtorch";
  expect_as_plain(torch::randn({8, 3}),
                  [](const auto& a, const auto& w) { return torch::addmm(torch::ones({3}), w, a); });
}

TEST_F(PackedProducts, EinsumOfAMatrixIsAProduct) {
  const at::Tensor x = torch::randn({2, 3, 8}), y = torch::randn({2, 3, 4});
  const auto expect_product = [&](const at::Tensor& input, const std::string& equation, bool weight_first) {
    const int before = rows_of(weight_).products + rows_of(weight_).transposed_products;
    expect_as_plain(input, [&](const at::Tensor& a, const at::Tensor& w) {
      return weight_first ? torch::einsum(equation, {w, a}) : torch::einsum(equation, {a, w});
    });
    EXPECT_EQ(rows_of(weight_).products + rows_of(weight_).transposed_products, before + 2) << equation;
  };
  expect_product(x, "bti,oi->bto", false);
  expect_product(x, "...i,oi->...o", false);
  expect_product(x, "... i, o i -> ... o", false);
  expect_product(x, "bti,oi->obt", false);
  expect_product(x, "oi,bti->tob", true);
  expect_product(y, "bto,oi->bti", false);
  expect_product(y.transpose(0, 2), "otb,oi->bti", false);
  expect_product(x[0][0], "i,oi->o", false);
  expect_product(x[0], "...i,oi->...o", false);
}

TEST_F(PackedProducts, OtherEinsumsDequantize) {
  const at::Tensor x = torch::randn({3, 8});
  for (const char* const equation : {"bi,oi->", "bi,oi->boi", "bi,oi", "bi,oi->b", "bi,oj->bo"}) {
    expect_as_plain(x, [&](const auto& a, const auto& w) { return torch::einsum(equation, {a, w}); });
  }
  expect_as_plain(torch::randn({4, 8}), [](const auto& a, const auto& w) {
    return torch::einsum("oi,oi->i", {a, w});
  });
  EXPECT_TRUE(at::allclose(torch::einsum("oi->io", {weight_}), plain_.t()));
  EXPECT_TRUE(at::allclose(torch::einsum("ij,kj->ik", {weight_, weight_}), plain_.mm(plain_.t())));
  EXPECT_THROW(torch::einsum("bij,oi->bo", {x, weight_}), c10::Error) << "too many labels";
  const at::Tensor narrow = torch::randn({5, 1});
  EXPECT_TRUE(at::allclose(torch::einsum("bi,oi->bo", {narrow, weight_}),
                           torch::einsum("bi,oi->bo", {narrow, plain_})));
}

TEST_F(PackedProducts, TheResultHasTheInputsDtype) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor x = torch::randn({3, 8}).to(dtype);
    const at::Tensor y = torch::linear(x, weight_, torch::ones({4}));
    EXPECT_EQ(y.scalar_type(), dtype);
    // The same operation of libtorch on the same values.
    EXPECT_TRUE(
        at::equal(y, torch::linear(x, packed_data(weight_)->dequantize(dtype), torch::ones({4}, dtype))));
    EXPECT_EQ(torch::matmul(x, weight_.to(at::kHalf).t()).scalar_type(), dtype) << "not the nominal one";
  }
}

TEST_F(PackedProducts, EmptyInputsGiveEmptyResultsAndGradients) {
  const at::Tensor x = torch::randn({0, 8}).set_requires_grad(true);
  const at::Tensor bias = torch::ones({4}).set_requires_grad(true);
  const at::Tensor y = torch::linear(x, weight_, bias);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 4}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), at::IntArrayRef({0, 8}));
  EXPECT_TRUE(at::equal(bias.grad(), torch::zeros({4})));
  EXPECT_EQ(torch::matmul(torch::randn({2, 0, 8}), weight_.t()).sizes(), at::IntArrayRef({2, 0, 4}));

  const at::Tensor no_output = pack(torch::zeros({0, 8})), no_input = pack(torch::zeros({4, 1})).t();
  EXPECT_EQ(torch::linear(torch::ones({3, 8}), no_output).sizes(), at::IntArrayRef({3, 0}));
  EXPECT_EQ(rows_of(weight_).products, 0) << "formats do not see empty inputs";
  EXPECT_TRUE(at::equal(torch::matmul(torch::ones({2, 1}), no_input), torch::zeros({2, 4})));
}

TEST_F(PackedProducts, NaNAndInfinityPassThrough) {
  at::Tensor x = torch::ones({3, 8});
  x[1][2] = kNaN;
  x[2][3] = std::numeric_limits<float>::infinity();
  const at::Tensor y = torch::linear(x, weight_), expected = torch::linear(x, plain_);
  EXPECT_TRUE(at::allclose(y, expected, 0, 0, /*equal_nan=*/true));
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
}

TEST_F(PackedProducts, InputsNeedNotBeContiguous) {
  expect_as_plain(torch::randn({8, 3}).t(), [](const auto& a, const auto& w) { return torch::linear(a, w); });
  expect_as_plain(torch::randn({3, 16}).slice(1, 0, 16, 2),
                  [](const auto& a, const auto& w) { return torch::linear(a, w); });
  expect_as_plain(torch::randn({1, 8}).expand({3, 8}),
                  [](const auto& a, const auto& w) { return torch::linear(a, w); });
}

TEST_F(PackedProducts, CanBeDifferentiatedTwice) {
  const at::Tensor x = torch::randn({3, 8}).set_requires_grad(true);
  const at::Tensor y = torch::linear(x, weight_).pow(2).sum();
  const at::Tensor first = torch::autograd::grad({y}, {x}, {}, {}, /*create_graph=*/true)[0];
  const at::Tensor second = torch::autograd::grad({first.sum()}, {x})[0];
  // y = |x W^T|^2, so its Hessian is 2 W^T W.
  EXPECT_TRUE(at::allclose(second, 2 * torch::ones({3, 8}).mm(plain_.t().mm(plain_)), 1e-4, 1e-5));
}

TEST_F(PackedProducts, TheBackwardPassUsesTheWeightOfTheForwardPass) {
  torch::nn::Linear layer(8, 4);
  replace_weight(*layer, "weight", weight_);
  const at::Tensor x = torch::randn({3, 8}).set_requires_grad(true);
  const at::Tensor y = layer(x), z = torch::matmul(y, layer->weight);
  replace_weight(*layer, "weight", pack(torch::randn({4, 8})));
  z.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), torch::ones({3, 8}).mm(plain_.t()).mm(plain_), 1e-5, 1e-5));
}

TEST_F(PackedProducts, NoGraphIsKeptWithoutNeed) {
  const at::Tensor x = torch::randn({3, 8}), leaf = torch::randn({3, 8}).set_requires_grad(true);
  EXPECT_FALSE(torch::linear(x, weight_).requires_grad());
  const torch::NoGradGuard no_grad;
  const at::Tensor y = torch::linear(leaf, weight_);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(at::equal(y, torch::linear(leaf, plain_)));
}

TEST_F(PackedProducts, AutocastCastsTheInputAndLeavesTheWeightPacked) {
  torch::nn::Linear layer(8, 4);
  replace_weight(*layer, "weight", weight_);
  const at::Tensor x = torch::randn({3, 8}).set_requires_grad(true);
  const bool was_enabled = at::autocast::is_autocast_enabled(at::kCPU);
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor two = layer(x), three = layer(x.unsqueeze(0)),
                   by_einsum = torch::einsum("bi,oi->bo", {x, layer->weight});
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled);

  const auto low = [](const at::Tensor& t) { return t.detach().to(at::kBFloat16); };
  EXPECT_TRUE(at::equal(two, torch::linear(low(x), low(plain_), low(layer->bias))));
  EXPECT_EQ(three.scalar_type(), at::kBFloat16);
  EXPECT_EQ(by_einsum.scalar_type(), at::kBFloat16);
  EXPECT_EQ(rows_of(weight_).products, 3);
  two.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  const at::Tensor expected = torch::ones({3, 4}, at::kBFloat16).mm(low(plain_)).to(at::kFloat);
  EXPECT_TRUE(at::equal(x.grad(), expected));
}

TEST_F(PackedProducts, ErrorsNameTheOperationAndTheCure) {
  const at::Tensor x = torch::ones({3, 7});
  EXPECT_THAT(error_of([&] { torch::linear(x, weight_); }),
              AllOf(HasSubstr("linear"), HasSubstr("[3, 7]"), HasSubstr("must be 8")));
  EXPECT_THROW(torch::matmul(x, weight_), c10::ValueError);
  EXPECT_THROW(torch::mm(weight_, x), c10::ValueError);
  EXPECT_THROW(torch::mm(torch::ones({2, 3, 8}), weight_.t()), c10::ValueError);
  EXPECT_THROW(torch::matmul(torch::ones({}), weight_), c10::ValueError);
  EXPECT_THROW(torch::linear(torch::ones({3, 8}), weight_, torch::ones({5})), c10::ValueError);
  EXPECT_THAT(error_of([&] {
                torch::linear(torch::ones({3, 8}, at::kLong), weight_);
              }),
              AllOf(HasSubstr("Long"), HasSubstr("cast the input")));
  EXPECT_THAT(error_of([&] {
                packed::linear(torch::ones({3, 8}, at::kMeta), weight_, {});
              }),
              AllOf(HasSubstr("meta"), HasSubstr("cpu"), HasSubstr("to()")));
  EXPECT_THAT(error_of([&] { torch::linear(weight_, torch::ones({3, 8})); }), HasSubstr("dequantize"));
  EXPECT_THAT(error_of([&] {
                torch::addmm(weight_, torch::ones({4, 2}), torch::ones({2, 8}));
              }),
              AllOf(HasSubstr("addmm"), HasSubstr("dequantize")));
  EXPECT_THROW(torch::matmul(torch::ones({2, 8}), pack(torch::ones({2, 8, 3}))), c10::ValueError);
}

TEST_F(PackedProducts, OfTwoPackedWeightsTheLeftOneIsDequantized) {
  const at::Tensor other = pack(torch::randn({5, 8}));
  EXPECT_TRUE(at::allclose(torch::matmul(other, weight_.t()), other.dequantize().mm(plain_.t()), 1e-5, 1e-6));
}

}  // namespace
}  // namespace mantissa::products_test
