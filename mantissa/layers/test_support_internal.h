#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/weights/marked_weight.h"

namespace mantissa::layers_test {

/// A rule that multiplies as torch::linear() does and counts its products.
class CountingRule final : public WeightRule {
 public:
  std::string description() const override { return "a rule that counts"; }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override {
    ++products;
    return at::linear(x, weight, bias);
  }
  WeightRulePtr for_copy() const override { return std::make_shared<CountingRule>(); }
  mutable int products = 0;
};

inline std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  return module.named_parameters().keys();
}

inline at::Tensor parameter(const torch::nn::Module& module, const std::string& name) {
  return module.named_parameters()[name];
}

inline void randomize(torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : module.parameters()) parameter.uniform_(-0.5, 0.5);
}

inline std::string error_of(const std::function<void()>& call) {
  return mantissa::error_of<c10::ValueError>(call);
}

}  // namespace mantissa::layers_test
