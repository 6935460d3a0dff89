#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/grad_scaler_state.h"
#include "mantissa/amp/step_result.h"
#include "mantissa/core/tree.h"

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

class IterationTracker;
struct ScalerData;

struct GradScalerOptions {
  double init_scale = 65536.0;     ///< the first scale; a plain factor
  double growth_factor = 2.0;      ///< multiplies the scale after `growth_interval` clean steps in a row
  double backoff_factor = 0.5;     ///< multiplies the scale after an overflow; 0 sets it to min_scale at once
  int64_t growth_interval = 2000;  ///< clean steps before the scale grows; a huge value keeps it fixed
  bool enabled = true;             ///< false: every call passes through as if there were no scaler

  /// The scale never leaves [min_scale, max_scale], however it is set. The default of min_scale is the smallest
  /// normal float32, 2^-126. Down to this limit the scaler computes the same numbers as torch's. From 2^-128 down,
  /// 1 / scale is inf in torch, and the next clean step writes inf or nan into the parameters. 0 sets no limit, as
  /// in torch.
  double min_scale = std::numeric_limits<float>::min();
  double max_scale = std::numeric_limits<float>::max();
  /// The number of the overflow at which the scale backs off. It backs off at this overflow and at each later
  /// one. After `growth_interval` clean iterations in a row, the count starts again. This is the rule of Megatron-LM
  /// and DeepSpeed; in Apex's kernel, the count starts again at every clean iteration. Every overflowed step is
  /// skipped. 1: the scale backs off at every overflow, as in torch.
  int64_t hysteresis_steps = 1;

  /// After this many skipped or retried steps of an optimizer in a row, and again after each further multiple
  /// of it, a warning names the first parameters whose gradients held inf or nan before they were clipped. To make
  /// this warning, unscale_() reads gradients on the host, but only if the next skipped step would trigger it.
  /// 0 switches the warning off. For StepSupportsAmpScaling optimizers it works only if note_step() reports
  /// their skips.
  int64_t warn_after_skips = 10;
  /// The name of a parameter in warnings and in StepResult; by default "group 0, parameter 3".
  std::function<std::string(const at::Tensor& parameter)> parameter_name{};

  /// Allows unscale_() to divide fp16 gradients in place, which torch refuses. Values that fall below 6e-8 are
  /// then lost, although the scale was meant to prevent that. A StepSupportsAmpScaling optimizer does not need
  /// this option if unscale_() is not called, because it divides inside its step and loses nothing.
  bool allow_fp16_gradients = false;
};

/// True for a tensor, for a container (vector, array, map, tuple, pair, optional) of tensor trees, and for a
/// struct with tensors(). Every leaf of such a type is a tensor, so scale() can scale all of it.
template <typename T>
inline constexpr bool is_tensor_tree = HasTensors<T>;
template <>
inline constexpr bool is_tensor_tree<at::Tensor> = true;
template <typename T, typename A>
inline constexpr bool is_tensor_tree<std::vector<T, A>> = is_tensor_tree<T>;
template <typename T, size_t N>
inline constexpr bool is_tensor_tree<std::array<T, N>> = is_tensor_tree<T>;
template <typename K, typename T, typename C, typename A>
inline constexpr bool is_tensor_tree<std::map<K, T, C, A>> = is_tensor_tree<T>;
template <typename T>
inline constexpr bool is_tensor_tree<std::optional<T>> = is_tensor_tree<T>;
template <typename A, typename B>
inline constexpr bool is_tensor_tree<std::pair<A, B>> = is_tensor_tree<A>&& is_tensor_tree<B>;
template <typename... Ts>
inline constexpr bool is_tensor_tree<std::tuple<Ts...>> = (is_tensor_tree<Ts> && ...);

template <typename T>
concept TensorTree = is_tensor_tree<T>;

/// Keeps small fp16 gradients from flushing to zero in a hand-written loop: scales the loss up and the
/// gradients back down, skips a step whose gradients overflowed, and moves the scale to a value where
/// overflows are rare.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);                       // only where gradients are clipped or looked at
///     clip_grad_norm_(model->parameters(), 1.0);
///     scaler.step(optimizer);                           // once for every optimizer
///     scaler.update();                                  // once an iteration, last
///
/// IterationTracker (iteration_tracker.h) replaces update() in a loop that does not know where an iteration
/// ends.
///
/// An optimizer that derives from StepSupportsAmpScaling (core/step_scaling.h), such as FusedAdamW, divides by the
/// scale and skips overflowed steps inside its own step().
///
/// The scaler knows an optimizer by its address, from unscale_() or step() to update(); the optimizer must
/// live until then.
///
/// Shapes:   scale, growth count and overflow flags are 0-dim, on the device of the first tensor scaled.
/// Units:    the scale is a plain factor; gradients leave unscale_() in the loss's own units.
/// Numerics: gradients are multiplied by float32(1 / float64(scale)), exact for powers of two. An overflow is
///           an inf or nan in the gradients as they come in. The scale stays in [min_scale, max_scale].
/// Sync:     step() reads one flag from each device that holds gradients, and none with a
///           StepSupportsAmpScaling optimizer; get_scale(), get_growth_tracker() and state_dict() read what
///           they return. Nothing else waits for a device, unless the warning of warn_after_skips is due.
///           With such optimizers a CUDA graph can capture a whole iteration, from scale() to update(). Call
///           scale() once before the capture, so that the scale exists. The scale and the counts of clean
///           steps and of overflows keep their memory for the scaler's life, so update(new_scale) and
///           load_state_dict() act on later replays; factors and limits are those of the capture.
/// Threads:  one at a time.
/// Errors:   c10::ValueError for options out of range and fp16 gradients; c10::TypeError for LBFGS;
///           c10::Error for calls out of order.
/// Source:   Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; torch.amp.GradScaler.
/// Example:  grad_scaler_test.cpp, GradScaler.TrainsOneStep
class GradScaler {
 public:
  using LossClosure = std::function<at::Tensor()>;

  /// Makes a scaler for training on `device`. If `device` is CUDA and there is no GPU, the constructor warns once
  /// and makes a disabled scaler.
  explicit GradScaler(at::Device device, const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  GradScaler(const GradScaler&) = delete;  // a copy would share the scale's tensor
  GradScaler& operator=(const GradScaler&) = delete;

  /// Returns outputs * scale, with torch's type promotion: a 0-dim fp16 loss becomes float32, a 1-dim one
  /// stays fp16 and may overflow. Shape: that of `outputs`.
  /// Errors: c10::ValueError if `outputs` is undefined.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);
  /// Scales each tensor of a tree and keeps its structure. A tree that holds anything else does not compile
  /// (torch fails with "outputs must be a Tensor or an iterable of Tensors").
  template <TensorTree Tree>
  Tree scale(const Tree& outputs);

  /// Divides every gradient of `optimizer` by the scale, in place, and records any inf or nan. Call it once
  /// an iteration, before clipping or reading gradients; otherwise step() does it.
  /// Errors: c10::ValueError for fp16 gradients unless they are allowed; c10::NotImplementedError for complex
  ///         gradients; c10::TypeError for LBFGS; c10::Error if called before scale(), twice, or after
  ///         step(). Gradients are then untouched.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Clips the gradients of `optimizer` by their joint norm, after unscaling them if that was not done yet.
  /// Returns the norm before clipping, in the loss's own units, 0-dim on the first gradient's device.
  ///
  /// Numerics: as mantissa::clip_grad_norm_() on unscaled gradients. fp16 gradients of a
  ///           StepSupportsAmpScaling optimizer stay scaled and unchanged. Their norm is computed in float32,
  ///           and the optimizer's next step applies the factor min(1, max_norm / (norm + 1e-6)), which it
  ///           gets in its member `grad_scale`. For a norm_type other than inf and 1 to 2, the norm is computed
  ///           from the unscaled values, because powers of the scaled ones overflow sooner.
  /// Sync:     none.
  /// Errors:   those of mantissa::clip_grad_norm_() and of unscale_(), before anything is changed.
  at::Tensor clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type = 2.0);
  /// Clips each element of the gradients of `optimizer` to [-clip_value, clip_value], in the loss's own
  /// units.
  ///
  /// Numerics: scaled fp16 gradients (see clip_grad_norm_()) are clamped to clip_value * scale, rounded to
  ///           fp16. If that is beyond fp16, no finite element exceeds it and none is changed.
  /// Sync:     none.
  /// Errors:   those of mantissa::clip_grad_value_() and of unscale_(), before anything is changed.
  void clip_grad_value_(torch::optim::Optimizer& optimizer, double clip_value);

  /// Steps `optimizer` unless a gradient overflowed; returns whether it called optimizer.step(). A
  /// StepSupportsAmpScaling optimizer is always called and skips an overflowed step itself; found_inf() shows
  /// whether it did.
  /// Errors: those of unscale_(); c10::Error if step() was called since the last update(), or no parameter
  ///         has a gradient.
  bool step(torch::optim::Optimizer& optimizer);
  /// With a disabled scaler, returns the loss that optimizer.step(closure) returns.
  /// Errors: c10::Error if the scaler is enabled: a closure would need its own scaling, checking and
  ///         skipping.
  at::Tensor step(torch::optim::Optimizer& optimizer, const LossClosure& closure);

  /// Ends the iteration: the scale backs off after an overflow in any optimizer (see also hysteresis_steps)
  /// and grows after `growth_interval` clean iterations.
  /// Errors: c10::Error if no gradients were checked since the last update().
  void update();
  /// Ends the iteration with the given scale instead, clamped to [min_scale, max_scale]; the counts stay. 0 is
  /// accepted, as in torch, and becomes min_scale.
  /// Errors: c10::ValueError if `new_scale` is negative or does not fit in float32.
  void update(double new_scale);
  /// Ends the iteration with the scale in a one-element tensor. The value is copied, so nothing waits for the
  /// device. A value below min_scale, also a negative one, becomes min_scale.
  /// Errors: c10::ValueError if the tensor is on another kind of device than the scaler, does not have one
  ///         element, or requires grad.
  void update(const at::Tensor& new_scale);

  /// Forgets what this iteration has recorded about `optimizer`. Call it if a step is not taken after all. The
  /// optimizer's next gradients are unscaled and checked again.
  void forget(const torch::optim::Optimizer& optimizer);

  /// Returns what the last step() of `optimizer` did. For a StepSupportsAmpScaling optimizer the result is
  /// read only when it is asked for.
  StepResult last_step(const torch::optim::Optimizer& optimizer) const;

  /// Reports whether the last step of a StepSupportsAmpScaling optimizer changed anything, for the warning of
  /// warn_after_skips. step() knows this for all other optimizers.
  void note_step(const torch::optim::Optimizer& optimizer, bool stepped);

  /// Sets the names of parameters in warnings and in StepResult, unless the options did.
  void set_parameter_name(std::function<std::string(const at::Tensor& parameter)> name);

  /// Returns what the check of `optimizer`'s gradients found in this iteration: nonzero for an overflow.
  /// Shape: 0-dim float32 on the scale's device; undefined if nothing was checked.
  /// Sync: none.
  at::Tensor found_inf(const torch::optim::Optimizer& optimizer) const;

  bool is_enabled() const;
  /// Whether the limits of the scale are equal, so that no overflow and no clean step moves it.
  bool is_scale_fixed() const;
  /// Returns the scale, or 1 if the scaler is disabled.
  /// Sync: reads one value from the device.
  double get_scale() const;
  /// Returns the scale as a new 0-dim float32 tensor, which later updates do not change.
  /// Sync: none.
  at::Tensor scale_on_device() const;
  /// Returns the number of clean iterations since the scale last changed, or would have changed without its
  /// limits or hysteresis.
  /// Sync: reads one value from the device.
  int64_t get_growth_tracker() const;
  double get_growth_factor() const;
  double get_backoff_factor() const;
  int64_t get_growth_interval() const;
  /// As in torch, these accept any value. If the new interval is at or below the growth tracker, the scale
  /// does not grow before the tracker's next reset.
  void set_growth_factor(double growth_factor);
  void set_backoff_factor(double backoff_factor);
  void set_growth_interval(int64_t growth_interval);

  /// Returns the state that load_state_dict(), here or in Python, needs to resume; empty if disabled. Call it
  /// after update().
  GradScalerState state_dict() const;
  /// Resumes from a saved state; the state of the current iteration stays. Without _hysteresis_tracker the
  /// count starts full. Unknown keys are ignored; a disabled scaler ignores everything.
  /// Errors: c10::Error if `state` is empty; c10::ValueError if a key is missing, if the scale is not
  ///         positive, or if the constructor would refuse a factor or the interval. A scale of 0, to which
  ///         torch's scaler can underflow, is accepted if min_scale is 0. After an error the scaler is
  ///         unchanged.
  void load_state_dict(const GradScalerState& state);

 private:
  friend class IterationTracker;
  std::unique_ptr<ScalerData> data_;
};

template <TensorTree Tree>
Tree GradScaler::scale(const Tree& outputs) {
  std::vector<at::Tensor> tensors;
  map_tensors(outputs, [&](const at::Tensor& output) { return tensors.emplace_back(output); });
  tensors = scale(tensors);
  size_t next = 0;
  return map_tensors(outputs, [&](const at::Tensor&) { return tensors[next++]; });
}

}  // namespace mantissa
