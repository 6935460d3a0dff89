#pragma once

#include <tuple>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include "mantissa/optim/state_format.h"

namespace mantissa {

/// The options of one parameter group of Adam, AdamW and their fused versions.
/// AdamWOptions (adamw.h) are the same with AdamW's default weight decay.
struct AdamOptions : public torch::optim::OptimizerCloneableOptions<AdamOptions> {
  AdamOptions(double lr = 1e-3) : lr_(lr) {}

  using betas_t = std::tuple<double, double>;

  /// Step size.
  TORCH_ARG(double, lr) = 1e-3;
  /// Decay rates of the running means of the gradient and of its square, each in [0, 1).
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-8;
  /// Adam adds weight_decay * parameter to the gradient; AdamW shrinks the parameter by lr * weight_decay.
  TORCH_ARG(double, weight_decay) = 0;
  /// Divides by the largest squared mean so far.
  /// Memory: one more tensor per parameter.
  TORCH_ARG(bool, amsgrad) = false;
  /// Maximizes the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// The state of Adam and its variants for one parameter, under the names of Python's state_dict().
///
/// Shapes: step is 0-dim float32, a tensor so that a fused step can undo its increment on the device; the
///         others have the parameter's shape and dtype; max_exp_avg_sq is undefined without amsgrad.
struct AdamParamState : public torch::optim::OptimizerCloneableParamState<AdamParamState> {
  TORCH_ARG(at::Tensor, step);
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);
  TORCH_ARG(at::Tensor, max_exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Adam for hand-written loops. Its numbers equal those of Python's torch.optim.Adam bit for bit; libtorch's
/// own torch::optim::Adam only comes close.
///
/// A parameter that is listed twice in a group, as libtorch's Module::parameters() lists tied weights, is
/// updated once.
///
/// Memory:  two tensors of the size of each parameter, three with amsgrad.
/// Errors:  c10::ValueError for options out of range, for an empty list of parameters and for a parameter in
///          two groups; c10::TypeError for a group with another optimizer's options; c10::Error for sparse
///          gradients. Nothing has changed then.
/// Source:  Kingma and Ba 2015, arXiv:1412.6980; order of operations of Python's single-tensor path on the
///          CPU.
/// Example: adam_test.cpp, Adam.PE07_FollowsWhatPythonRecorded.
class Adam : public torch::optim::Optimizer, public HasStateFormats {
 public:
  explicit Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const AdamOptions& defaults = {})
      : Adam(groups, defaults, WeightDecay::kAddedToGradient) {}
  explicit Adam(std::vector<at::Tensor> parameters, const AdamOptions& defaults = {})
      : Adam({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  /// As libtorch's, but checks the group's options and keeps them with every version of libtorch (see
  /// SGD::add_param_group()).
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Updates every parameter that has a gradient. With `closure`, calls it first with gradients enabled and
  /// returns its result; otherwise returns an undefined tensor.
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Also loads files of the fused versions and of torch::optim::Adam or AdamW.
  /// Errors: c10::ValueError for a file of another optimizer or of other parameters. Nothing has changed
  ///         then.
  void load(torch::serialize::InputArchive& archive) override;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override;

 protected:
  enum class WeightDecay { kAddedToGradient, kDecoupled };
  Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups, const AdamOptions& defaults,
       WeightDecay weight_decay);

 private:
  void update(at::Tensor parameter, const AdamOptions& options);

  WeightDecay weight_decay_;
};

}  // namespace mantissa
