// Traces of custom functions, whose backward pass is the user's code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

#include "mantissa/trace/test_nets_internal.h"
#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::custom_backward_test {
namespace {

using namespace nonfinite_test;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The backward pass writes its result without any operation of libtorch.
struct RawNanGradient : torch::autograd::Function<RawNanGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    at::Tensor out = torch::zeros(gradients[0].sizes());
    out.data_ptr<float>()[0] = kNan;
    return {out};
  }
};
struct FilledNanGradient : torch::autograd::Function<FilledNanGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {torch::full_like(gradients[0], kNan)};
  }
};

/// Recomputes its forward pass in the backward pass, as checkpointing does.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor compute(const at::Tensor& x) { return x + torch::sqrt(x * 0); }
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return compute(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode with_gradients(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    compute(x).backward(gradients[0]);
    return {x.grad()};
  }
};

TEST(CustomBackward, LooksIntoABackwardThatRunsAGraphOfItsOwn) {
  Convnet net;
  net.faults["pool"] = [](const at::Tensor& x) { return Recomputed::apply(x); };
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->forward_op, "aten::sqrt") << origin->to_string();
  EXPECT_EQ(origin->module, "norm");
  EXPECT_EQ(origin->next_module, "head");
}

TEST(CustomBackward, NamesACustomFunctionWhoseBackwardMakesNan) {
  Convnet net;
  net.faults["pool"] = [](const at::Tensor& x) { return RawNanGradient::apply(x); };
  const auto raw = trace(net);
  ASSERT_TRUE(raw);
  EXPECT_THAT(raw->op, HasSubstr("RawNanGradient")) << raw->to_string();
  EXPECT_TRUE(raw->backward);
  EXPECT_EQ(raw->module, "norm");
  EXPECT_EQ(raw->cause, NonFiniteCause::kUnknown);
  EXPECT_EQ(raw->result.non_finite, 1);

  net.faults["pool"] = [](const at::Tensor& x) { return FilledNanGradient::apply(x); };
  const auto filled = trace(net);
  ASSERT_TRUE(filled);
  EXPECT_EQ(filled->cause, NonFiniteCause::kConstant) << filled->to_string();
  EXPECT_THAT(filled->forward_op, HasSubstr("FilledNanGradient"));
}

TEST(CustomBackward, SeesGradientsThatAreSparse) {
  torch::manual_seed(1);
  torch::nn::Embedding rows(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  const at::Tensor tokens = torch::tensor({1, 2});
  const auto bad = [&] { return FilledNanGradient::apply(rows(tokens)).sum(); };
  const auto origin = trace_nonfinite(*rows, bad);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->cause, NonFiniteCause::kConstant) << origin->to_string();
  EXPECT_FALSE(trace_nonfinite(*rows, [&] { return rows(tokens).sum(); }));
}

}  // namespace
}  // namespace mantissa::custom_backward_test
