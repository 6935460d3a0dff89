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
/// Scale:   it moves when the next iteration begins (its first backward()), so that several optimizers with
///          one backward pass are all unscaled by the scale that scaled them, and it moves once. An optimizer
///          whose gradients were unscaled but never stepped starts afresh with its next gradients; what the
///          old ones held does not move the scale.
/// Numerics: fp16 gradients of an optimizer that does not unscale by itself are divided in fp16, which loses
///          what the scale has saved; this is warned of once.
/// Threads: one at a time.
/// Errors:  c10::TypeError for LBFGS with a scaler; c10::Error for a second step with the gradients of the
///          last one.
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

  /// Whether the gradients of `optimizer` stay scaled until its step, which divides them: see Numerics.
  bool keeps_scale(torch::optim::Optimizer& optimizer) const;
  /// What StepResult calls a parameter, or its float32 copy; empty for one that convert_module() has not
  /// seen.
  std::string parameter_name(const at::Tensor& parameter) const;

 protected:
  /// `scaler`: null for a mode that does not scale.
  ScaledPrecision(std::string name, std::unique_ptr<GradScaler> scaler);

  void set_parameter_name(const at::Tensor& parameter, const std::string& name);

 private:
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
  /// Gradients, and their versions, by which later ones are told apart. Held weakly: zero_grad() frees their
  /// memory.
  using Fingerprint = std::vector<std::pair<WeakTensor, uint32_t>>;
  /// An optimizer whose gradients the scaler has looked at and which waits for its step.
  struct Waiting {
    torch::optim::Optimizer* optimizer;  ///< an address only: the loop may have destroyed it
    std::vector<at::Tensor> parameters;
    bool still_scaled = false;    ///< checked and clipped, but left for the step to unscale
    bool backward_since = false;  ///< another backward pass has begun, before which `gradients` were taken
    Fingerprint gradients = {};
  };

  bool scales() const { return scaler_ && scaler_->is_enabled(); }
  static Fingerprint fingerprint(const std::vector<at::Tensor>& parameters);
  static bool same(const Fingerprint& a, const Fingerprint& b);
  /// Whether the gradients of `optimizer` are those of its last step, which has unscaled them.
  bool are_used_up(torch::optim::Optimizer& optimizer) const;
  Waiting& wait(torch::optim::Optimizer& optimizer);
  /// Null if it does not wait, or if it did and has new gradients: then what was noted of it is forgotten.
  const Waiting* waiting(torch::optim::Optimizer& optimizer);
  void begin_iteration_of(torch::optim::Optimizer& optimizer);
  void forget(const torch::optim::Optimizer& optimizer);
  bool has_overflowed(torch::optim::Optimizer& optimizer) const;
  std::string first_nonfinite_parameter(torch::optim::Optimizer& optimizer) const;
  void end_iteration() const;

  std::unique_ptr<GradScaler> scaler_;
  std::vector<Waiting> waiting_;
  mutable std::vector<const torch::optim::Optimizer*> stepped_;  ///< since the scale last moved
  /// What each optimizer's last step left, by its address.
  std::unordered_map<const torch::optim::Optimizer*, Fingerprint> used_up_;
  /// Held weakly: a parameter may die, and its address is no other's while this holds it.
  std::unordered_map<const at::TensorImpl*, std::pair<WeakTensor, std::string>> names_;
  bool warned_of_fp16_ = false;
  /// A step was taken or skipped, and the scale has not learned from it yet.
  mutable bool update_is_due_ = false;
};

}  // namespace mantissa
