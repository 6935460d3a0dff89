#pragma once

#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include "mantissa/optim/state_format.h"

namespace mantissa {

/// The options of one parameter group of SGD.
struct SGDOptions : public torch::optim::OptimizerCloneableOptions<SGDOptions> {
  SGDOptions(double lr = 1e-3) : lr_(lr) {}

  /// Step size.
  TORCH_ARG(double, lr) = 1e-3;
  /// The fraction of the sum of past gradients that remains at each step; 0 keeps no sum.
  TORCH_ARG(double, momentum) = 0;
  /// The fraction of each gradient that does not enter that sum. The first gradient enters it whole.
  TORCH_ARG(double, dampening) = 0;
  /// Adds weight_decay * parameter to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  /// Steps along the gradient + momentum * the sum. It needs momentum, and no dampening.
  TORCH_ARG(bool, nesterov) = false;
  /// Maximizes the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// The state of SGD with momentum for one parameter, under the name of Python's state_dict().
///
/// Shapes: the parameter's shape and dtype.
struct SGDParamState : public torch::optim::OptimizerCloneableParamState<SGDParamState> {
  TORCH_ARG(at::Tensor, momentum_buffer);
  /// For FusedSGD, 0-dim float32: nonzero while found_inf has skipped every step since the buffer was made,
  /// so that the buffer holds nothing yet. A file then has no buffer; the flag itself is never saved.
  TORCH_ARG(at::Tensor, is_buffer_empty);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Stochastic gradient descent for hand-written loops. Its numbers equal those of Python's torch.optim.SGD
/// bit for bit, also in 16-bit dtypes; there libtorch's own torch::optim::SGD rounds the momentum first (0.9
/// becomes 0.8984375 in bfloat16).
///
/// A parameter that is listed twice in a group, as libtorch's Module::parameters() lists tied weights, is
/// updated once.
///
/// Memory:  one tensor of the size of each parameter with momentum, none without.
/// Errors:  c10::ValueError for options out of range, for an empty list of parameters and for a parameter in
///          two groups; c10::TypeError for a group with another optimizer's options; c10::Error for a sparse
///          gradient together with weight decay. Nothing has changed then.
/// Source:  order of operations of Python's single-tensor path on the CPU; Nesterov's form from Sutskever et
///          al. 2013, "On the importance of initialization and momentum in deep learning".
/// Example: sgd_test.cpp, SGD.PE09_FollowsWhatPythonRecorded.
class SGD final : public torch::optim::Optimizer, public HasStateFormats {
 public:
  explicit SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SGDOptions& defaults = {});
  explicit SGD(std::vector<at::Tensor> parameters, const SGDOptions& defaults = {})
      : SGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  /// As libtorch's, but checks the group's options and keeps them with every version of libtorch. From 2.13
  /// on libtorch's own function, called through a reference to torch::optim::Optimizer, gives the group the
  /// defaults.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Updates every parameter that has a gradient. With `closure`, calls it first with gradients enabled and
  /// returns its result; otherwise returns an undefined tensor.
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Also loads files of FusedSGD and torch::optim::SGD.
  /// Errors: c10::ValueError for a file of another optimizer or of other parameters. Nothing has changed
  ///         then.
  void load(torch::serialize::InputArchive& archive) override;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override;

 private:
  at::Tensor with_momentum(const at::Tensor& parameter, const at::Tensor& grad, const SGDOptions& options);
  void update(const at::Tensor& parameter, const SGDOptions& options);
};

}  // namespace mantissa
