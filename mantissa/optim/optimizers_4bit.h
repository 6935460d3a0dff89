#pragma once

#include <utility>
#include <vector>

#include "mantissa/optim/optimizers_8bit.h"

// The 4-bit optimizers. LowBitOptimizer documents what they share with the 8-bit ones.
namespace mantissa {

/// Adam with two 4-bit states. As in Adam, and unlike in Adam8bit, weight decay is added to the gradient.
///
/// Numerics: torchao's Adam4bit. A first moment below 0.3 % of its block's largest becomes 0.
/// Memory:   1.06 bytes of state for each element. A parameter whose elements are no multiple of 128 has float32
///           states, as one below LowBitOptions::min_8bit_size has.
/// Errors:   c10::ValueError for amsgrad.
/// Source:   Li et al. 2023, arXiv:2309.01507.
/// Example:  optimizer_4bit_test.cpp, FourBit.FollowsThe32BitForm
class Adam4bit : public LowBitOptimizerWith<AdamOptions> {
 public:
  explicit Adam4bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const AdamOptions& defaults = {}, const LowBitOptions& options = {})
      : Adam4bit("Adam4bit", /*decouples_decay=*/false, groups, defaults, options) {}
  explicit Adam4bit(std::vector<at::Tensor> parameters, const AdamOptions& defaults = {},
                    const LowBitOptions& options = {})
      : Adam4bit(in_one_group(std::move(parameters)), defaults, options) {}

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  Adam4bit(const char* name, bool decouples_decay, const Groups& groups, const AdamOptions& defaults,
           const LowBitOptions& options)
      : LowBitOptimizerWith(name, {kernels::UpdateRule::kAdamDecayFirst, 4, decouples_decay}, groups,
                            defaults, options) {}
  static Groups in_one_group(std::vector<at::Tensor> parameters) {
    return {torch::optim::OptimizerParamGroup(std::move(parameters))};
  }
};

/// Adam4bit with AdamW's weight decay: it shrinks the parameter by lr * weight_decay before the step.
class AdamW4bit final : public Adam4bit {
 public:
  explicit AdamW4bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const AdamWOptions& defaults = {}, const LowBitOptions& options = {})
      : Adam4bit("AdamW4bit", /*decouples_decay=*/true, groups, defaults, options) {}
  explicit AdamW4bit(std::vector<at::Tensor> parameters, const AdamWOptions& defaults = {},
                     const LowBitOptions& options = {})
      : AdamW4bit(in_one_group(std::move(parameters)), defaults, options) {}
};

}  // namespace mantissa
