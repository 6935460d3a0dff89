#pragma once

#include <vector>

#include "mantissa/optim/adam.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_optimizer.h"

namespace mantissa {

/// Adam in one kernel call for all parameters of a group, device and dtype; its numbers equal those of
/// Python's torch.optim.Adam(fused=True) bit for bit. FusedOptimizer documents what all fused optimizers
/// share. Files of Adam load here, and the other way round.
///
/// Numerics: differs from Adam in the last bits: it computes m * beta1 + (1 - beta1) * g where Adam
///           interpolates, and it computes 16-bit parameters in float32 and rounds once, where Adam rounds at
///           each operation. As in Python, the squared gradients underflow in float16, and a weight leaps
///           when its gradient returns to 0: train float16 weights with stochastic_rounding, which keeps
///           float32 moments.
/// Memory:   as Adam.
/// Example:  fused_adam_test.cpp, FusedAdam.FollowsAdam.
class FusedAdam : public FusedOptimizer {
 public:
  explicit FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const AdamOptions& defaults = {}, const FusedOptions& options = {})
      : FusedAdam("FusedAdam", groups, defaults, options, /*decoupled=*/false) {}
  explicit FusedAdam(std::vector<at::Tensor> parameters, const AdamOptions& defaults = {},
                     const FusedOptions& options = {})
      : FusedAdam({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Also loads files of Adam, AdamW and libtorch's own versions.
  void load(torch::serialize::InputArchive& archive) override;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override;

 protected:
  FusedAdam(const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups,
            const AdamOptions& defaults, const FusedOptions& options, bool decoupled);

  const torch::optim::OptimizerOptions& checked_options(
      const torch::optim::OptimizerParamGroup& group) const override;
  void add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) override;
  void call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const override;

 private:
  bool decoupled_;
};

/// FusedAdam with decoupled weight decay; its numbers equal those of Python's torch.optim.AdamW(fused=True).
class FusedAdamW final : public FusedAdam {
 public:
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      const AdamWOptions& defaults = {}, const FusedOptions& options = {})
      : FusedAdam("FusedAdamW", groups, defaults, options, /*decoupled=*/true) {}
  explicit FusedAdamW(std::vector<at::Tensor> parameters, const AdamWOptions& defaults = {},
                      const FusedOptions& options = {})
      : FusedAdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}
};

}  // namespace mantissa
