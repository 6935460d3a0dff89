#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_window_test {
namespace {

/// Two fp16 weights; the gradient of each is its factor.
struct Net : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::zeros({2}, at::kHalf));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
  Net() { b->to(at::kHalf); }
  WindowBatch batch(float of_a, float of_b) {
    return {[=, this] { return (a * of_a).sum() + (b->weight * of_b).sum(); }};
  }
};

TEST(TraceNonFiniteWindow, FindsASumThatOverflowsThoughEveryTermIsFinite) {
  Net net;
  net.b->weight.mutable_grad() = torch::ones({1, 1}, at::kHalf);
  EXPECT_FALSE(trace_nonfinite_window(net, {}));
  EXPECT_FALSE(trace_nonfinite_window(net, {net.batch(1, 3e4), net.batch(1, 3e4)}));
  const auto found = trace_nonfinite_window(net, {net.batch(1, 3e4), net.batch(1, 3e4), net.batch(1, 3e4)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->batch, 2);
  const NonFiniteOrigin& origin = found->origin;
  SCOPED_TRACE(origin.to_string());
  EXPECT_EQ(origin.cause, NonFiniteCause::kAccumulation);
  EXPECT_TRUE(origin.backward);
  EXPECT_EQ(origin.module, "b");
  EXPECT_THAT(origin.tensor, testing::HasSubstr("'b.weight'"));
  EXPECT_EQ(origin.finite_in_float32, true);
  ASSERT_EQ(origin.inputs.size(), 2);
  EXPECT_NEAR(origin.inputs[0].max_abs, 6e4, 32);  // the nearest fp16 value
  EXPECT_NEAR(origin.inputs[1].max_abs, 3e4, 16);
  EXPECT_THAT(origin.to_string(), testing::HasSubstr("cause: the sum over the accumulation window"));
  EXPECT_EQ(net.b->weight.grad().item<float>(), 1) << "the caller's";
}

TEST(TraceNonFiniteWindow, ABatchOfItsOwnFaultSaysMoreThanASum) {
  Net net;
  WindowBatch bad{[&] { return (net.a.to(at::kFloat) - 1).log().sum(); }};
  const auto found =
      trace_nonfinite_window(net, {net.batch(1, 6e4), net.batch(1, 6e4), bad, net.batch(1, 1)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->batch, 2);
  EXPECT_EQ(found->origin.op, "aten::log");
}

TEST(TraceNonFiniteWindow, AddsSparseGradientsToDenseOnes) {
  torch::nn::Embedding rows(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  rows->weight.data().zero_();  // so that the losses are finite
  const WindowBatch sparse{[&] { return (rows(torch::tensor({1})) * 3e38).sum(); }};
  const WindowBatch dense{[&] { return (rows->weight * 3e38).sum(); }};
  for (const auto& window :
       {std::vector{sparse, dense}, std::vector{dense, sparse}, std::vector{sparse, sparse}}) {
    const auto found = trace_nonfinite_window(*rows, window);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->batch, 1);
    EXPECT_EQ(found->origin.cause, NonFiniteCause::kAccumulation);
  }
  EXPECT_FALSE(trace_nonfinite_window(*rows, {sparse}));
}

}  // namespace
}  // namespace mantissa::nonfinite_window_test
