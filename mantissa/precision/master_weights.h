#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

/// Float32 copies of an optimizer's 16-bit parameters, which it steps in their place, so that updates below half an ulp
/// of a 16-bit weight are not lost.
///
/// The copies stand in the optimizer's parameter groups, and the gradient of a 16-bit parameter moves to its copy's, in
/// float32, as soon as backward() has made it: zero_grad(), unscaling, clipping and accumulation find it there, the
/// parameter's own grad() stays undefined.
///
/// Memory:  6 bytes a 16-bit parameter: the copy, and 2 more for its gradient.
/// Threads: one at a time.
/// Errors:  c10::ValueError for an optimizer that has state already. The optimizer and the parameters are then as before.
/// Source:  Micikevicius et al. 2018, arXiv:1710.03740, section 3.1; Apex's level O2.
class MasterWeights {
 public:
  /// `optimizer` is borrowed.
  explicit MasterWeights(torch::optim::Optimizer& optimizer);
  /// Gradients stay with the parameters from then on. The optimizer keeps the copies.
  ~MasterWeights();
  MasterWeights(const MasterWeights&) = delete;
  MasterWeights& operator=(const MasterWeights&) = delete;

  /// Rounds the copies into the model's parameters; call it after a step.
  void copy_to_model();

  /// Calls visit(parameter, its float32 copy) for each pair.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < model_.size(); ++i) visit(model_[i], master_[i]);
  }
  bool belongs_to(const torch::optim::Optimizer& optimizer) const { return &optimizer == optimizer_; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<at::Tensor> model_, master_;
};

}  // namespace mantissa
