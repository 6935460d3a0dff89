#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/gradient_hooks.h"
#include "mantissa/weights/packed_data.h"

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

/// Holds master weights: float32 weights that an optimizer steps in place of the model's 16-bit parameters,
/// so that updates below half an ulp of a 16-bit weight are not lost. A weight that a mode stores in FP8 (fp8/fp8_weight.h)
/// has a master weight, too, which begins with the values from before its quantization.
///
/// The master weights are in the optimizer's parameter groups. As soon as backward() has made the gradient of
/// a 16-bit parameter, the gradient moves to its master weight in float32; the optimizer's zero_grad(),
/// unscaling, clipping and accumulation find it there. The parameter's own grad() stays undefined, so a
/// module's zero_grad() clears nothing.
///
/// State that an optimizer's constructor makes, such as torch::optim::Adagrad's sums, becomes the state of
/// the master weights, in float32.
///
/// Memory:  6 bytes for each 16-bit parameter: 4 for the master weight, and 2 more for its gradient.
/// Threads: one at a time.
/// Errors:  c10::ValueError for an optimizer that has stepped or whose state was loaded. The optimizer and
///          the parameters are then unchanged.
/// Source:  Micikevicius et al. 2018, arXiv:1710.03740, section 3.1; Apex's level O2.
class MasterWeights {
 public:
  /// `optimizer` is borrowed.
  explicit MasterWeights(torch::optim::Optimizer& optimizer);
  /// After destruction gradients stay with the parameters again. The optimizer keeps the master weights.
  ~MasterWeights() = default;
  MasterWeights(const MasterWeights&) = delete;
  MasterWeights& operator=(const MasterWeights&) = delete;

  /// Makes master weights for 16-bit parameters that were added to `optimizer`, the one that was set up, since. Returns
  /// whether there were any.
  /// Errors: c10::ValueError for one that the optimizer has already, or has stepped. Nothing has changed then.
  bool add_parameters(torch::optim::Optimizer& optimizer);

  /// Copies values that were written into the model's parameters since, for example by loading a file or
  /// through data(), to the master weights. Call it before a step.
  /// Sync: none.
  void copy_changes_from_model();
  /// Rounds the master weights into the model's 16-bit parameters. Call it after a step.
  void copy_to_model();
  /// Quantizes the master weights into the model's parameters that are stored in FP8. Call it after a step, when the
  /// layers' scales have moved on.
  void store_in_fp8();
  /// Gives the model's parameters that are stored in FP8 the values of their master weights, in 16 bits: they are ordinary
  /// tensors then.
  void restore_from_fp8();
  /// Says that the master weights were loaded. What the model has in FP8 then does not count as a change.
  void were_loaded() { are_loaded_ = true; }

  /// Calls visit(parameter, master weight) for each pair.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < model_.size(); ++i) visit(model_[i], master_[i]);
  }
  bool belongs_to(const torch::optim::Optimizer& optimizer) const { return &optimizer == optimizer_; }
  /// Whether `optimizer` steps these master weights: it is the optimizer that was set up, not another one at
  /// the same address.
  bool are_stepped_by(const torch::optim::Optimizer& optimizer) const;
  bool share_a_parameter_with(const MasterWeights& other) const;

 private:
  /// The position of a master weight in the optimizer.
  struct Place {
    size_t group, number;
  };

  /// Adds a parameter and returns its master weight.
  at::Tensor add(const at::Tensor& parameter, Place place);
  /// Gives the gradients of the model's parameters from this one on to their master weights.
  void move_gradients_from(size_t first);

  torch::optim::Optimizer* optimizer_;
  std::vector<at::Tensor> model_, master_;
  std::vector<PackedDataPtr> stored_;  ///< the codes made of each master weight; null for a 16-bit parameter
  bool are_loaded_ = false;            ///< since the last step
  std::vector<Place> places_;
  std::vector<GradientHook> hooks_;
};

}  // namespace mantissa
