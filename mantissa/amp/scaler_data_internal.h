#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/core/weak_map.h"

namespace mantissa {

class StepSupportsAmpScaling;

/// One value on several devices, copied to each device at its first use.
using PerDevice = std::vector<std::pair<at::Device, at::Tensor>>;

/// Throws a c10::ValueError for a growth or backoff factor out of range; `function` names the caller.
void check_factors(const char* function, const GradScalerOptions& options);
/// Throws a c10::Error if a backward pass has added scaled gradients to checked ones.
void check_not_mixed(const char* function, const GradientRecord& record);
/// Whether a flag in `found_inf` is set. Sync: reads the flags.
bool has_overflowed(const PerDevice& found_inf);
/// Multiplies by `inv_scale` and returns the overflow flags of each device that holds gradients.
PerDevice check_and_unscale(const torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
                            bool allow_fp16);

/// What a GradScaler owns, and the operations that its calls and those of IterationTracker share.
struct ScalerData {
  /// The tensors that change at the end of an iteration; undefined before the first scale().
  struct Scale {
    at::Tensor value{};           ///< 0-dim float32
    at::Tensor growth_tracker{};  ///< 0-dim int32
    at::Tensor
        hysteresis_tracker{};  ///< 0-dim int32: overflows until a backoff; undefined without hysteresis
  };

  /// Errors: those of GradScaler's constructor.
  ScalerData(at::Device device, const GradScalerOptions& given);

  void create_scale(at::Device on);
  void check_initialized(const char* function) const;
  void check_usable(const char* function, const torch::optim::Optimizer& optimizer) const;
  /// Returns null if nothing was recorded about `optimizer`.
  GradientRecord* find_record(const torch::optim::Optimizer& optimizer) const;
  GradientRecord& record_of(const torch::optim::Optimizer& optimizer);
  /// Records any inf or nan and leaves the gradients as they are.
  void check(const torch::optim::Optimizer& optimizer, GradientRecord& record) const;
  /// Returns the divisor for a step whose gradients are still scaled.
  at::Tensor divisor(const StepSupportsAmpScaling& scaling, const GradientRecord& record) const;
  /// Returns an undefined tensor if `flags` is empty.
  at::Tensor sum_on_scale_device(const PerDevice& flags) const;
  /// Updates `moved` in place from what this iteration found.
  void move(const Scale& moved, const at::Tensor& found_inf) const;
  /// Restores the scale `before` the backoff while overflows are still tolerated.
  void apply_hysteresis(const Scale& moved, const at::Tensor& before, const at::Tensor& found_inf) const;
  /// Brings a scale into [min_scale, max_scale].
  void bound(const at::Tensor& value) const;
  double bounded(double value) const;
  GradScalerState state_dict_of(const Scale& of) const;
  /// Forgets everything that this iteration has found.
  void forget_iteration();
  bool is_scale_fixed() const { return options.min_scale == options.max_scale; }
  bool warns_at(int64_t skips) const;
  std::string nonfinite_gradients(const GradientRecord& record) const;

  at::Device device;
  GradScalerOptions options;  // a state that is loaded before the first scale() also sets init_scale
  int64_t init_growth_tracker = 0;
  int64_t init_hysteresis_tracker = 0;
  Scale scale{};
  std::vector<std::shared_ptr<GradientRecord>> records{};  // one for each optimizer
  /// Gradients that were loaded scaled and now carry the present scale.
  WeakMap<at::Tensor, bool> restored{};
};

}  // namespace mantissa
