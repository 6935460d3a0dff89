#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

/// What all modes with a loss scaler share; without one its hooks are Precision's own.
///
/// Sync:    optimizer_step() reads one overflow flag from the device; with clipping, clip_gradients() does.
/// Scale:   it moves when the next iteration begins (its first backward()), so that several optimizers with one
///          backward pass are all unscaled by the scale that scaled them, and it moves once. An optimizer whose
///          gradients were unscaled but never stepped starts afresh with its next gradients; what the old ones
///          held does not move the scale.
/// Threads: one at a time. An optimizer must live until its step, or until the next backward() but one.
/// Errors:  c10::TypeError for LBFGS with a scaler.
/// Source:  spec 2.3, ERR-9.
class ScaledPrecision : public Precision {
 public:
  /// Notes the parameters' names, for StepResult.
  void convert_module(torch::nn::Module& module) override;
  at::Tensor pre_backward(const at::Tensor& loss) override;
  at::Tensor scale_loss(const at::Tensor& loss) override { return scales() ? scaler_->scale(loss) : loss; }
  void unscale_gradients(torch::optim::Optimizer& optimizer) override;
  at::Tensor clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                            GradientClipAlgorithm algorithm = GradientClipAlgorithm::kNorm) override;
  StepResult optimizer_step(torch::optim::Optimizer& optimizer,
                            const std::function<at::Tensor()>& closure = nullptr) override;
  PrecisionState state_dict() const override;
  void load_state_dict(const PrecisionState& state) override;

  /// Null where the mode does not scale. Its scale is the one that the next backward() will use.
  GradScaler* scaler() {
    end_iteration();
    return scaler_.get();
  }

 protected:
  /// `scaler`: null for a mode that does not scale.
  ScaledPrecision(std::string name, std::unique_ptr<GradScaler> scaler);

  /// What StepResult calls a parameter.
  void set_parameter_name(const at::Tensor& parameter, const std::string& name);
  std::string parameter_name(const at::Tensor& parameter) const;

 private:
  /// Gradients, and their versions, by which later ones are told apart.
  using Fingerprint = std::vector<std::pair<at::Tensor, uint32_t>>;
  /// An optimizer whose gradients the scaler has looked at and which waits for its step.
  struct Waiting {
    torch::optim::Optimizer* optimizer;
    bool still_scaled = false;    ///< checked and clipped, but left for the step to unscale
    bool backward_since = false;  ///< another backward pass has begun, before which `gradients` were taken
    Fingerprint gradients = {};
  };

  bool scales() const { return scaler_ && scaler_->is_enabled(); }
  static Fingerprint fingerprint(const torch::optim::Optimizer& optimizer);
  static bool same(const Fingerprint& a, const Fingerprint& b);
  /// Null if it does not wait, or if it did and has new gradients: then what was noted of it is forgotten.
  const Waiting* waiting(torch::optim::Optimizer& optimizer);
  void begin_iteration_of(torch::optim::Optimizer& optimizer);
  void warn_of_skips(torch::optim::Optimizer& optimizer, bool stepped);
  void forget(torch::optim::Optimizer& optimizer);
  bool has_overflowed(torch::optim::Optimizer& optimizer) const;
  std::string first_nonfinite_parameter(torch::optim::Optimizer& optimizer) const;
  void end_iteration() const;

  std::unique_ptr<GradScaler> scaler_;
  std::vector<Waiting> waiting_;
  mutable std::vector<const torch::optim::Optimizer*> stepped_;  ///< since the scale last moved
  int64_t skips_in_a_row_ = 0;                                   ///< of optimizers that unscale by themselves
  std::unordered_map<const at::TensorImpl*, std::string> names_;
  mutable bool update_is_due_ =
      false;  ///< a step was taken or skipped, and the scale has not learned from it yet
};

}  // namespace mantissa
