#pragma once

#include <vector>

#include <torch/arg.h>

#include "mantissa/optim/fused_optimizer.h"

namespace mantissa {

/// The options of one parameter group of FusedAdagrad.
struct AdagradOptions : public torch::optim::OptimizerCloneableOptions<AdagradOptions> {
  AdagradOptions(double lr = 1e-2) : lr_(lr) {}

  /// Step size.
  TORCH_ARG(double, lr) = 1e-2;
  /// The step size is lr / (1 + lr_decay * steps so far).
  TORCH_ARG(double, lr_decay) = 0;
  /// Adds weight_decay * parameter to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  /// The initial value of the sums of squares.
  TORCH_ARG(double, initial_accumulator_value) = 0;
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-10;
  /// Maximizes the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Adagrad's state for one parameter, under the names of Python's state_dict().
///
/// Shapes: step is 0-dim float32, sum has the parameter's shape and dtype.
struct AdagradParamState : public torch::optim::OptimizerCloneableParamState<AdagradParamState> {
  TORCH_ARG(at::Tensor, step);
  TORCH_ARG(at::Tensor, sum);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Adagrad in one kernel call for all parameters of a group, device and dtype; its numbers equal those of
/// Python's torch.optim.Adagrad(fused=True) bit for bit. FusedOptimizer documents what all fused optimizers
/// share. GradScaler passes it the scale; Python's scaler does not know that its fused Adagrad accepts one,
/// and waits for the device.
///
/// Memory:  one tensor of the size of each parameter; it is float32 for 16-bit parameters with stochastic
///          rounding.
/// Source:  Duchi et al. 2011, "Adaptive subgradient methods for online learning and stochastic
///          optimization".
/// Example: fused_adagrad_test.cpp, FusedAdagrad.FollowsItsFormula.
class FusedAdagrad final : public FusedOptimizer {
 public:
  explicit FusedAdagrad(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                        const AdagradOptions& defaults = {}, const FusedOptions& options = {});
  explicit FusedAdagrad(std::vector<at::Tensor> parameters, const AdagradOptions& defaults = {},
                        const FusedOptions& options = {})
      : FusedAdagrad({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Also loads files of torch::optim::Adagrad.
  void load(torch::serialize::InputArchive& archive) override;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override;

 protected:
  const torch::optim::OptimizerOptions& checked_options(
      const torch::optim::OptimizerParamGroup& group) const override;
  void add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) override;
  void call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const override;
};

}  // namespace mantissa
