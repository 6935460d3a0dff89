#pragma once

// For the tests of marked weights: a rule that needs nothing but ATen.

#include <atomic>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/weights/marked_weight.h"

namespace mantissa {

/// Returns the nearest multiples of 1/4.
inline at::Tensor rounded(const at::Tensor& x) { return (x.detach() * 4).round() / 4; }

/// Multiplies by the rounded weight; the gradient passes the rounding unchanged.
class RoundedProduct : public torch::autograd::Function<RoundedProduct> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight) {
    const at::Tensor codes = rounded(weight).to(x.scalar_type());
    ctx->save_for_backward({x, codes});
    return x.matmul(codes.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor g = gradients[0], width = saved[0];
    return {g.matmul(saved[1]), g.reshape({-1, g.size(-1)}).t().matmul(width.reshape({-1, width.size(-1)}))};
  }
};

class RoundingRule final : public WeightRule {
 public:
  std::string description() const override { return "quarters"; }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override {
    ++products;
    EXPECT_FALSE(is_marked(x) || is_marked(weight) || is_marked(bias));
    const at::Tensor y = RoundedProduct::apply(x, weight);
    return bias.defined() ? y + bias.to(y.scalar_type()) : y;
  }
  WeightRulePtr for_copy() const override { return std::make_shared<RoundingRule>(); }

  mutable std::atomic<int> products = 0;
};

/// Marks `weight` with a RoundingRule and returns the rule.
inline std::shared_ptr<const RoundingRule> mark(const at::Tensor& weight) {
  auto rule = std::make_shared<RoundingRule>();
  mark_weight(weight, rule);
  return rule;
}

}  // namespace mantissa
