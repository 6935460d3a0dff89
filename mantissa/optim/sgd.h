#pragma once

#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include "mantissa/optim/state_format.h"

namespace mantissa {

/// What one parameter group of SGD is updated with.
struct SGDOptions : public torch::optim::OptimizerCloneableOptions<SGDOptions> {
  SGDOptions(double lr = 1e-3) : lr_(lr) {}

  /// Step size.
  TORCH_ARG(double, lr) = 1e-3;
  /// What remains of the sum of past gradients at each step; 0 keeps none.
  TORCH_ARG(double, momentum) = 0;
  /// Part of each gradient that does not enter that sum, the first gradient aside, which enters it whole.
  TORCH_ARG(double, dampening) = 0;
  /// Adds weight_decay * parameter to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  /// Steps along the gradient + momentum * the sum. Needs momentum, and no dampening.
  TORCH_ARG(bool, nesterov) = false;
  /// Climbs instead of descending.
  TORCH_ARG(bool, maximize) = false;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// What SGD with momentum remembers of one parameter, under the name that Python's state_dict() has.
///
/// Shapes: the parameter's shape and dtype.
struct SGDParamState : public torch::optim::OptimizerCloneableParamState<SGDParamState> {
  TORCH_ARG(at::Tensor, momentum_buffer);
  /// FusedSGD's, 0-dim float32: not 0 while found_inf dropped every step since the buffer was made, so that
  /// it holds nothing yet. A file then has no buffer; the flag itself is never in one.
  TORCH_ARG(at::Tensor, unstarted);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Stochastic gradient descent for hand-written loops, the same numbers as Python's torch.optim.SGD bit for
/// bit in 16-bit dtypes too, where libtorch's own torch::optim::SGD rounds the momentum first (0.9 becomes
/// 0.8984375 in bfloat16).
///
/// A parameter named twice in a group, as libtorch's Module::parameters() names tied weights, is updated
/// once.
///
/// Memory:  one tensor of the size of each parameter with momentum, none without.
/// Errors:  c10::ValueError for options out of range, for no parameters at all and for a parameter in two
///          groups; c10::TypeError for a group whose options are another optimizer's; c10::Error for a sparse
///          gradient together with weight decay. Nothing has changed then.
/// Source:  order of operations of Python's one-tensor path on the CPU; Nesterov's form from Sutskever et al.
///          2013, "On the importance of initialization and momentum in deep learning".
/// Example: sgd_test.cpp, SGD.PE09_EqualsPythonBitForBit.
class SGD final : public torch::optim::Optimizer, public HasStateFormats {
 public:
  explicit SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SGDOptions& defaults = {});
  explicit SGD(std::vector<at::Tensor> parameters, const SGDOptions& defaults = {})
      : SGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  /// libtorch's, but that the group's options are looked at and kept with every libtorch. Its own, through a
  /// reference to torch::optim::Optimizer, gives the group the defaults from 2.13 on.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Updates every parameter that has a gradient. With `closure`, calls it first with gradients enabled and
  /// returns what it returned; without, returns an undefined tensor.
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Also takes what FusedSGD and torch::optim::SGD saved.
  /// Errors: c10::ValueError for another optimizer's file and for one of other parameters. Nothing has
  ///         changed then.
  void load(torch::serialize::InputArchive& archive) override;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override;

 private:
  at::Tensor with_momentum(const at::Tensor& parameter, const at::Tensor& grad, const SGDOptions& options);
  void update(const at::Tensor& parameter, const SGDOptions& options);
};

}  // namespace mantissa
