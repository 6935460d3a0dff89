#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

/// Float32 copies of an optimizer's 16-bit parameters, which it steps in their place, so that updates below
/// half an ulp of a 16-bit weight are not lost.
///
/// The copies stand in the optimizer's parameter groups, and the gradient of a 16-bit parameter moves to its
/// copy's, in float32, as soon as backward() has made it: the optimizer's zero_grad(), unscaling, clipping
/// and accumulation find it there, the parameter's own grad() stays undefined, so that a module's zero_grad()
/// clears nothing.
///
/// What an optimizer's constructor has made already, as torch::optim::Adagrad's sums are, becomes the copies'
/// state, in float32.
///
/// Memory:  6 bytes a 16-bit parameter: the copy, and 2 more for its gradient.
/// Threads: one at a time.
/// Errors:  c10::ValueError for an optimizer that has stepped, or whose state was loaded. The optimizer and
///          the parameters are then as before.
/// Source:  Micikevicius et al. 2018, arXiv:1710.03740, section 3.1; Apex's level O2.
class MasterWeights {
 public:
  /// `optimizer` is borrowed.
  explicit MasterWeights(torch::optim::Optimizer& optimizer);
  /// Gradients stay with the parameters from then on. The optimizer keeps the copies.
  ~MasterWeights();
  MasterWeights(const MasterWeights&) = delete;
  MasterWeights& operator=(const MasterWeights&) = delete;

  /// Takes over what was written into the model's parameters since, as by loading a file; call it before a
  /// step.
  void take_over_changes();
  /// Rounds the copies into the model's parameters; call it after a step.
  void copy_to_model();

  /// Calls visit(parameter, its float32 copy) for each pair.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < model_.size(); ++i) visit(model_[i], master_[i]);
  }
  bool belongs_to(const torch::optim::Optimizer& optimizer) const { return &optimizer == optimizer_; }
  /// Whether `optimizer` steps these copies: it was set up before and is no other at the same address.
  bool are_stepped_by(const torch::optim::Optimizer& optimizer) const;
  bool share_a_parameter_with(const MasterWeights& other) const;

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<at::Tensor> model_, master_;
  std::vector<uint32_t> versions_;  ///< of the model's parameters when the copies were the same
};

}  // namespace mantissa
