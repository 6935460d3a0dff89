#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/gradient_watch_internal.h"
#include "mantissa/amp/iteration_tracker.h"

namespace mantissa {

/// Identifies the gradients of parameters: which tensors they are, and how often each was written in place.
/// It holds them weakly, so that zero_grad() frees their memory.
using GradientFingerprint = std::vector<std::pair<WeakTensor, uint32_t>>;

/// Everything that a GradScaler knows about one optimizer's gradients.
struct GradientRecord {
  explicit GradientRecord(const torch::optim::Optimizer& optimizer);

  /// Whether `other` is the optimizer that this record was made for, rather than a later one at the same
  /// address.
  bool belongs_to(const torch::optim::Optimizer& other) const;
  /// Whether it has all parameters of `other`, to which groups may have been added.
  bool is_complete(const torch::optim::Optimizer& other) const;
  /// Adds the parameters of `other`, which it belongs to, that it does not have yet.
  void add_parameters(const torch::optim::Optimizer& other);
  /// Whether all its parameters have been destroyed.
  bool is_dead() const;
  /// The gradients that its parameters have now, and whether they are those of `fingerprint`.
  GradientFingerprint gradients() const;
  bool has_gradients(const GradientFingerprint& fingerprint) const;
  /// Returns the defined gradients that its parameters have now.
  std::vector<at::Tensor> defined_gradients() const;
  /// Returns its living parameters, named by `name` or as "group 0, parameter 3".
  std::vector<std::pair<std::string, at::Tensor>> named_parameters(
      const std::function<std::string(const at::Tensor&)>& name) const;
  /// Whether the gradients have been checked and their step is still to come.
  bool awaits_step() const { return stage == GradientStage::kChecked || stage == GradientStage::kUnscaled; }
  /// For gradients that wait for their step: their stage after what backward passes have done to them.
  GradientStage stage_now() const;
  /// Observes the backward pass that begins; the observation ends with it, or with the next one. A restart
  /// ignores what was written since it began.
  void begin_backward();
  void restart_backward();
  void end_backward();
  /// Makes stage_now() return kMixed until all gradients have been cleared.
  void mark_as_mixed();
  /// Forgets what this iteration found.
  void reset_iteration();

  const torch::optim::Optimizer* optimizer;  ///< an address only: it may have been destroyed
  GradientStage stage = GradientStage::kScaled;
  /// One flag per device: nonzero if a gradient on that device is inf or nan.
  std::vector<std::pair<at::Device, at::Tensor>> found_inf{};
  /// If gradients were clipped while scaled: the factor by which the step divides them in addition to the
  /// scale.
  at::Tensor clip_divisor{};
  /// For the warning: the gradients that held inf or nan before clipping, because clipping spreads or hides
  /// those.
  std::string nonfinite{};

  /// The gradients that the last step used, and whether an overflow kept it from changing anything: 0-dim, on
  /// the scale's device. Both survive the end of an iteration.
  GradientFingerprint stepped{};
  /// Whether a backward pass has begun since that step, so that there may be gradients that no step has used.
  bool may_accumulate = true;
  /// Whether that step read on the host whether it overflowed.
  bool is_step_known = false;
  at::Tensor step_found_inf{};
  int64_t skips_in_a_row = 0;

 private:
  /// Undefined for those that are gone.
  std::vector<at::Tensor> parameters() const;
  std::vector<at::Tensor> current_gradients() const;
  std::vector<GradientOrigin> origins(const std::vector<at::Tensor>& gradients) const;

  struct Parameter {
    WeakTensor tensor;
    size_t group, number;
  };
  std::vector<Parameter> parameters_;
  std::vector<GradientOrigin> origins_;  ///< when the last observed backward pass ended; empty: all kChecked
  std::optional<GradientWatch> watch_;   ///< of the backward pass that is running
};

}  // namespace mantissa
