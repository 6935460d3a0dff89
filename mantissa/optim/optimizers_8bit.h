#pragma once

#include <tuple>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/rmsprop.h>

#include "mantissa/optim/adam.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/low_bit_optimizer.h"
#include "mantissa/optim/sgd.h"

// The 8-bit optimizers. LowBitOptimizer documents what they share; their formulas are those of
// kernels::UpdateRule (kernels/blockwise.h).
namespace mantissa {

/// The options of one parameter group of Lion8bit.
struct LionOptions : public torch::optim::OptimizerCloneableOptions<LionOptions> {
  LionOptions(double lr = 1e-4) : lr_(lr) {}

  using betas_t = std::tuple<double, double>;

  /// Step size: each element moves by it in every step. Use a third to a tenth of Adam's.
  TORCH_ARG(double, lr) = 1e-4;
  /// The weight of the past in the direction of a step, and the decay rate of the mean gradient, in [0, 1).
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  /// Shrinks the parameter by lr * weight_decay.
  TORCH_ARG(double, weight_decay) = 0;
  /// Maximizes the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// What depends on the options of an 8-bit or 4-bit optimizer.
template <typename Options>
class LowBitOptimizerWith : public LowBitOptimizer {
 public:
  void save(torch::serialize::OutputArchive& archive) const final;
  /// Errors: c10::ValueError for a file of another optimizer, of other parameters, or whose states have other
  ///         bits: repeat the overrides before loading. Nothing has changed then.
  void load(torch::serialize::InputArchive& archive) final;

 protected:
  /// Makes an 8-bit optimizer.
  LowBitOptimizerWith(const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      const Options& defaults, const LowBitOptions& options);
  LowBitOptimizerWith(const char* name, const Form& form,
                      const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& defaults,
                      const LowBitOptions& options);
  const torch::optim::OptimizerOptions& checked_options(
      const torch::optim::OptimizerParamGroup& group) const final;
  Hyperparameters hyperparameters(const torch::optim::OptimizerOptions& options) const final;
  void set_hyperparameters(torch::optim::OptimizerOptions& options,
                           const Hyperparameters& settings) const final;

 private:
  const char* name_;
};

extern template class LowBitOptimizerWith<AdamOptions>;
extern template class LowBitOptimizerWith<LionOptions>;
extern template class LowBitOptimizerWith<SGDOptions>;
extern template class LowBitOptimizerWith<torch::optim::RMSpropOptions>;
extern template class LowBitOptimizerWith<AdagradOptions>;

/// Adam with two 8-bit states. Unlike Adam's, its weight decay is decoupled, as bitsandbytes's is: it shrinks
/// the parameter by lr * weight_decay after the step.
///
/// Errors: c10::ValueError for amsgrad.
class Adam8bit : public LowBitOptimizerWith<AdamOptions> {
 public:
  explicit Adam8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const AdamOptions& defaults = {}, const LowBitOptions& options = {})
      : Adam8bit("Adam8bit", groups, defaults, options) {}
  explicit Adam8bit(std::vector<at::Tensor> parameters, const AdamOptions& defaults = {},
                    const LowBitOptions& options = {})
      : Adam8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}

 protected:
  Adam8bit(const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const AdamOptions& defaults, const LowBitOptions& options)
      : LowBitOptimizerWith(name, groups, defaults, options) {}
};

/// Adam8bit with AdamW's default weight decay, 0.01.
class AdamW8bit final : public Adam8bit {
 public:
  explicit AdamW8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const AdamWOptions& defaults = {}, const LowBitOptions& options = {})
      : Adam8bit("AdamW8bit", groups, defaults, options) {}
  explicit AdamW8bit(std::vector<at::Tensor> parameters, const AdamWOptions& defaults = {},
                     const LowBitOptions& options = {})
      : AdamW8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}
};

/// Lion with one 8-bit state.
/// Source: Chen et al. 2023, arXiv:2302.06675.
class Lion8bit final : public LowBitOptimizerWith<LionOptions> {
 public:
  explicit Lion8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const LionOptions& defaults = {}, const LowBitOptions& options = {})
      : LowBitOptimizerWith("Lion8bit", groups, defaults, options) {}
  explicit Lion8bit(std::vector<at::Tensor> parameters, const LionOptions& defaults = {},
                    const LowBitOptions& options = {})
      : Lion8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}
};

/// SGD with momentum in one 8-bit state.
/// Errors: c10::ValueError for momentum 0, which needs no state: use FusedSGD; for dampening and nesterov.
class SGD8bit final : public LowBitOptimizerWith<SGDOptions> {
 public:
  explicit SGD8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SGDOptions& defaults,
                   const LowBitOptions& options = {})
      : LowBitOptimizerWith("SGD8bit", groups, defaults, options) {}
  explicit SGD8bit(std::vector<at::Tensor> parameters, const SGDOptions& defaults,
                   const LowBitOptions& options = {})
      : SGD8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}
};

/// RMSprop with one 8-bit state.
/// Errors: c10::ValueError for alpha 0, for momentum and for centered.
class RMSprop8bit final : public LowBitOptimizerWith<torch::optim::RMSpropOptions> {
 public:
  explicit RMSprop8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       const torch::optim::RMSpropOptions& defaults = {}, const LowBitOptions& options = {})
      : LowBitOptimizerWith("RMSprop8bit", groups, defaults, options) {}
  explicit RMSprop8bit(std::vector<at::Tensor> parameters, const torch::optim::RMSpropOptions& defaults = {},
                       const LowBitOptions& options = {})
      : RMSprop8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}
};

/// Adagrad with one 8-bit state.
/// Errors: c10::ValueError for lr_decay and for initial_accumulator_value.
class Adagrad8bit final : public LowBitOptimizerWith<AdagradOptions> {
 public:
  explicit Adagrad8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       const AdagradOptions& defaults = {}, const LowBitOptions& options = {})
      : LowBitOptimizerWith("Adagrad8bit", groups, defaults, options) {}
  explicit Adagrad8bit(std::vector<at::Tensor> parameters, const AdagradOptions& defaults = {},
                       const LowBitOptions& options = {})
      : Adagrad8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}
};

}  // namespace mantissa
