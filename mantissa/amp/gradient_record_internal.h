#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/grad_scaler.h"

namespace mantissa {

/// Which gradients parameters have: which tensors, and how often each was written in place. Held weakly, so
/// that zero_grad() frees their memory.
class GradientFingerprint {
 public:
  /// Of no parameters.
  GradientFingerprint() = default;
  explicit GradientFingerprint(const std::vector<at::Tensor>& parameters);

  bool empty() const { return gradients_.empty(); }
  bool operator==(const GradientFingerprint& other) const = default;

 private:
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<std::pair<WeakTensor, uint32_t>> gradients_;
};

/// All that a GradScaler knows of one optimizer's gradients.
struct GradientRecord {
  explicit GradientRecord(const torch::optim::Optimizer& optimizer);

  /// Whether `other` is the optimizer that this record was made for, and no later one at its address.
  bool is_of(const torch::optim::Optimizer& other) const;
  /// Whether all its parameters are gone.
  bool is_dead() const;
  /// The gradients that its parameters have now.
  GradientFingerprint gradients() const;
  /// Its living parameters by what `name` calls them, or by "group 0, parameter 3".
  std::vector<std::pair<std::string, at::Tensor>> named_parameters(
      const std::function<std::string(const at::Tensor&)>& name) const;
  /// Whether the gradients were looked at and their step is still to come.
  bool waits() const { return stage == GradientStage::kChecked || stage == GradientStage::kUnscaled; }
  /// Forgets what this iteration found.
  void begin_iteration();

  const torch::optim::Optimizer* optimizer;  ///< an address only: it may have been destroyed
  GradientStage stage = GradientStage::kScaled;
  /// Nonzero where a gradient on that device is inf or nan.
  std::vector<std::pair<at::Device, at::Tensor>> found_inf{};
  /// Of gradients clipped while scaled: what the step divides by, beside the scale.
  at::Tensor clip_divisor{};
  /// For the warning: the gradients with inf or nan as they came in, since clipping spreads or hides those.
  std::string nonfinite{};
  /// Of gradients that wait for their step: as they were when the next backward pass began.
  GradientFingerprint before_backward{};

  /// What the last step used, and whether an overflow kept it from changing anything: 0-dim, on the scale's
  /// device. Both are kept from iteration to iteration.
  GradientFingerprint stepped{};
  at::Tensor step_found_inf{};
  int64_t skips_in_a_row = 0;

 private:
  struct Parameter {
    c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl> tensor;
    size_t group, number;
  };
  std::vector<Parameter> parameters_;
};

}  // namespace mantissa
