#include "mantissa/amp/custom_function.h"

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>

#include "mantissa/amp/test_support_internal.h"

namespace mantissa::custom_function_test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The state that forward and backward saw, for the tests to check.
struct Seen {
  bool enabled = false;
  at::ScalarType dtype = at::kInt, a = at::kInt, product = at::kInt, gradient = at::kInt;
};
Seen forward_saw, backward_saw;

void note(Seen& seen) {
  seen.enabled = at::autocast::is_autocast_enabled(at::kCPU);
  seen.dtype = at::autocast::get_autocast_dtype(at::kCPU);
}

/// a * b, either in float32 by its own choice or in the region's dtype.
template <bool kCasts>
struct Product : torch::autograd::Function<Product<kCasts>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a_in, const at::Tensor& b_in,
                            bool throws = false) {
    const CustomForward scope(ctx, at::kCPU,
                              {.cast_inputs = kCasts ? std::optional(at::kFloat) : std::nullopt});
    const auto [a, b] = scope.inputs(a_in, b_in);
    if (throws) throw std::runtime_error("forward");
    ctx->save_for_backward({a, b});
    const auto product = a.mm(b);
    note(forward_saw);
    forward_saw.a = a.scalar_type();
    forward_saw.product = product.scalar_type();
    return product;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const CustomBackward scope(ctx);
    const auto saved = ctx->get_saved_variables();
    const auto gradient = gradients[0].mm(saved[1].t());
    note(backward_saw);
    backward_saw.gradient = gradients[0].scalar_type();
    backward_saw.product = gradient.scalar_type();
    return {gradient, saved[0].t().mm(gradients[0]), at::Tensor()};
  }
};
using Follows = Product<false>;
using Float32 = Product<true>;

class CustomFunction : public testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(0);
    forward_saw = backward_saw = {};
  }
  void TearDown() override { EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU)); }
  at::Tensor a = torch::randn({3, 4}).requires_grad_(), b = torch::randn({4, 2}).requires_grad_();
};

/// A function without our scopes, which shows why the helpers are needed.
struct Bare : torch::autograd::Function<Bare> {
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& gradients) {
    note(backward_saw);
    return gradients;
  }
};

TEST_F(CustomFunction, AC33_BareBackwardsSeeTheStateOfTheirCaller) {
  for (const bool inside : {false, true}) {
    at::Tensor loss;
    {
      const Autocast region(at::kCPU);
      loss = Bare::apply(a).sum();
      if (inside) loss.backward();
    }
    if (!inside) loss.backward();
    EXPECT_EQ(backward_saw.enabled, inside);
  }
}

TEST_F(CustomFunction, AC34_BackwardRunsInTheStateOfForwardWhereverItIsCalled) {
  at::Tensor outside, half;
  {
    const Autocast region(at::kCPU);
    const auto inside = Follows::apply(a, b).sum();
    EXPECT_TRUE(forward_saw.enabled);
    EXPECT_EQ(forward_saw.product, at::kBFloat16);
    inside.backward();
    EXPECT_TRUE(backward_saw.enabled);
    outside = Follows::apply(a, b).sum();
    const Autocast inner(at::kCPU, {.dtype = at::kHalf});
    half = Follows::apply(a, b).sum();
  }
  outside.backward();
  EXPECT_TRUE(backward_saw.enabled);
  EXPECT_EQ(backward_saw.dtype, at::kBFloat16);
  EXPECT_EQ(backward_saw.product, at::kBFloat16);
  half.backward();
  EXPECT_EQ(backward_saw.dtype, at::kHalf);
  EXPECT_EQ(backward_saw.product, at::kHalf);

  const auto plain = Follows::apply(a, b).sum();
  const Autocast region(at::kCPU);
  plain.backward();
  EXPECT_FALSE(backward_saw.enabled);
  EXPECT_EQ(backward_saw.product, at::kFloat);
}

TEST_F(CustomFunction, AC35_CastInputsRunsInFloat32WithAutocastOff) {
  at::Tensor y;
  const auto low = a.detach().to(at::kBFloat16).requires_grad_();
  {
    const Autocast region(at::kCPU);
    y = Float32::apply(low, b);
    EXPECT_FALSE(forward_saw.enabled);
    EXPECT_EQ(forward_saw.a, at::kFloat);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));  // off for the scope only
    y.sum().backward();
    EXPECT_FALSE(backward_saw.enabled);
  }
  EXPECT_TRUE(at::equal(y, low.to(at::kFloat).mm(b)));
}

TEST_F(CustomFunction, AC35_TreesOfInputsAndWhatIsNotCast) {
  AutogradContext ctx;
  const Autocast region(at::kCPU);
  const CustomForward scope(&ctx, at::kCPU, {.cast_inputs = at::kFloat});
  using Tree = std::map<std::string, std::vector<at::Tensor>>;
  const auto low = torch::ones({2}, at::kBFloat16);
  const Tree given = {{"x", {low, torch::ones({2}, at::kDouble)}}, {"y", {torch::ones({2}, at::kLong), {}}}};
  const auto [tree, pair, maybe, text, number] =
      scope.inputs(given, std::pair(low, 3), std::optional(low), std::string("sum"), 2.5);
  EXPECT_EQ(tree.at("x")[0].scalar_type(), at::kFloat);
  EXPECT_TRUE(tree.at("x")[1].is_same(given.at("x")[1]));  // float64
  EXPECT_TRUE(tree.at("y")[0].is_same(given.at("y")[0]));
  EXPECT_FALSE(tree.at("y")[1].defined());
  EXPECT_EQ(pair.first.scalar_type(), at::kFloat);
  EXPECT_EQ(maybe->scalar_type(), at::kFloat);
  EXPECT_EQ(text, "sum");
  EXPECT_EQ(number, 2.5);
  EXPECT_EQ(given.at("x")[0].scalar_type(), at::kBFloat16);
}

TEST_F(CustomFunction, AC35_OtherDevicesInputsAreNotCast) {
  AutogradContext ctx;
  const Autocast region(at::kCPU);
  const CustomForward scope(&ctx, at::kCPU, {.cast_inputs = at::kFloat});
  const auto elsewhere = torch::ones({2}, at::TensorOptions(at::kMeta).dtype(at::kHalf));
  EXPECT_TRUE(std::get<0>(scope.inputs(elsewhere)).is_same(elsewhere));
}

TEST_F(CustomFunction, AC36_CastInputsOutsideOfRegionsDoesNothing) {
  const auto low = a.detach().to(at::kBFloat16).requires_grad_();
  const auto low_b = b.detach().to(at::kBFloat16);
  const auto check = [&] {
    const auto y = Float32::apply(low, low_b);
    EXPECT_EQ(forward_saw.a, at::kBFloat16);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return y.sum();
  };
  check();
  const Autocast outer(at::kCPU);
  at::Tensor loss;
  {
    const Autocast off(at::kCPU, {.enabled = false});
    loss = check();
  }
  loss.backward();
  EXPECT_FALSE(backward_saw.enabled);
}

TEST_F(CustomFunction, AC37_GradientsOfCastInputsAreCastBack) {
  const auto low = a.detach().to(at::kBFloat16).requires_grad_();
  at::Tensor y;
  {
    const Autocast region(at::kCPU);
    y = Float32::apply(low, b);
  }
  y.sum().backward();
  EXPECT_EQ(backward_saw.gradient, at::kFloat);  // forward's output dtype
  EXPECT_EQ(low.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(b.grad().scalar_type(), at::kFloat);
  const auto exact = torch::ones({3, 2}).mm(b.detach().t());
  EXPECT_TRUE(at::equal(low.grad(), exact.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(b.grad(), low.detach().to(at::kFloat).t().mm(torch::ones({3, 2}))));
}

TEST_F(CustomFunction, ExceptionsRestoreTheState) {
  const Autocast region(at::kCPU);
  EXPECT_THROW(Float32::apply(a, b, true), std::runtime_error);
  EXPECT_EQ(a.mm(b).scalar_type(), at::kBFloat16);
}

TEST_F(CustomFunction, NoGradAndInputsThatNeedNone) {
  const Autocast region(at::kCPU);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(Float32::apply(a, b).scalar_type(), at::kFloat);
  EXPECT_EQ(Follows::apply(a, b).scalar_type(), at::kBFloat16);
}

TEST_F(CustomFunction, WrongUseIsRefused) {
  AutogradContext ctx;
  expect_error([&] { CustomBackward{&ctx}; }, "construct CustomForward scope(ctx, device_type) first");
  expect_error<c10::ValueError>(
      [&] {
        CustomForward{&ctx, at::kCPU, {.cast_inputs = at::kLong}};
      },
      "cast_inputs = Long is not a floating-point dtype");
  expect_error([&] { CustomForward{&ctx, at::kMeta}; }, "unsupported autocast device type");
}

/// Computes `body` again in backward instead of saving its intermediate results.
struct Recomputed : torch::autograd::Function<Recomputed> {
  using Body = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Body* body) {
    ctx->save_for_backward({x});
    ctx->saved_data["body"] = reinterpret_cast<int64_t>(body);
    const AutocastOptions state = current_autocast(at::kCPU);
    ctx->saved_data["state"] =
        std::vector<int64_t>{static_cast<int64_t>(*state.dtype), state.enabled, *state.cache_enabled};
    return (*body)(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto state = ctx->saved_data["state"].toIntVector();
    const auto x = ctx->get_saved_variables()[0].detach().requires_grad_();
    const auto* body = reinterpret_cast<const Body*>(ctx->saved_data["body"].toInt());
    at::Tensor y;
    {
      const at::AutoGradMode grad(true);
      const Autocast region(at::kCPU, {.dtype = static_cast<at::ScalarType>(state[0]),
                                       .enabled = state[1] != 0,
                                       .cache_enabled = state[2] != 0});
      y = (*body)(x);
    }
    EXPECT_EQ(y.scalar_type(), gradients[0].scalar_type());
    y.backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

// libtorch has no checkpointing in C++; a user who writes one needs current_autocast().
TEST_F(CustomFunction, AC38_RecomputationReentersTheSavedState) {
  const auto w = torch::randn({4, 4}).requires_grad_();
  const Recomputed::Body body = [&](const at::Tensor& x) { return x.mm(w).relu().mm(w); };
  const auto gradients = [&](bool recompute, bool enabled, bool cache) {
    w.mutable_grad().reset();
    const auto x = a.detach().clone().requires_grad_();
    at::Tensor loss;
    {
      const Autocast region(at::kCPU, {.dtype = at::kHalf, .enabled = enabled, .cache_enabled = cache});
      loss = (recompute ? Recomputed::apply(x, &body) : body(x)).to(at::kFloat).pow(2).sum();
    }
    loss.backward();
    return std::pair(x.grad(), w.grad());
  };
  for (const bool enabled : {true, false}) {
    for (const bool cache : {true, false}) {
      const auto want = gradients(false, enabled, cache), got = gradients(true, enabled, cache);
      EXPECT_TRUE(at::equal(got.first, want.first)) << enabled << cache;
      EXPECT_TRUE(at::equal(got.second, want.second)) << enabled << cache;
    }
  }
}

}  // namespace
}  // namespace mantissa::custom_function_test
