#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/tree.h"

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

struct GradScalerOptions {
  double init_scale = 65536.0;     ///< the first scale; a plain factor
  double growth_factor = 2.0;      ///< times this after `growth_interval` clean steps in a row
  double backoff_factor = 0.5;     ///< times this after an overflow
  int64_t growth_interval = 2000;  ///< clean steps before the scale grows; a huge value keeps it fixed
  bool enabled = true;             ///< false: every call passes through as if there were no scaler
};

/// A scaler's state under torch's own five keys: scale, growth_factor, backoff_factor (floating point),
/// growth_interval, _growth_tracker (integers). Empty for a disabled scaler.
using GradScalerState = std::map<std::string, at::Scalar>;

/// A tensor, or a vector, array, map, tuple, pair or optional of such, or a struct with tensors(): nothing
/// that scaling would have to leave out.
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

/// Keeps small fp16 gradients from flushing to zero, in a hand-written loop: scales the loss up, the
/// gradients back down, drops a step whose gradients overflowed, and moves the scale to where that is rare.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);                       // only where gradients are clipped or looked at
///     clip_grad_norm_(model->parameters(), 1.0);
///     scaler.step(optimizer);                           // once for every optimizer
///     scaler.update();                                  // once an iteration, last
///
/// An optimizer is known by its address, from unscale_() or step() to update(): it must live until then.
///
/// Shapes:   scale, growth count and overflow flags are 0-dim, on the device of the first tensor scaled.
/// Units:    the scale is a plain factor; gradients leave unscale_() in the loss's own units.
/// Numerics: gradients are multiplied by float32(1 / float64(scale)), exact for powers of two. An overflow is
///           an inf or nan in the gradients as they come in. The scale has no lower bound: after some 165
///           overflows in a row it is 0, and the next step writes inf or nan (as in torch; see get_scale()).
/// Sync:     step() reads one flag from each device that holds gradients, and none with a
///           StepSupportsAmpScaling optimizer; get_scale(), get_growth_tracker() and state_dict() read what
///           they return. Nothing else waits for a device.
/// Threads:  one at a time.
/// Errors:   c10::ValueError for options out of range and fp16 gradients; c10::Error for calls out of order.
/// Source:   Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; spec section 3 (GS-1 to GS-55).
/// Example:  grad_scaler_test.cpp, GradScaler.TrainsOneStep
class GradScaler {
 public:
  using LossClosure = std::function<at::Tensor()>;

  /// For training on `device`. CUDA without a GPU warns once and disables the scaler.
  explicit GradScaler(at::Device device, const GradScalerOptions& options = {});
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;
  GradScaler(const GradScaler&) = delete;  // a copy would share the scale's tensor
  GradScaler& operator=(const GradScaler&) = delete;

  /// outputs * scale, with torch's type promotion: a 0-dim fp16 loss becomes float32, a 1-dim one stays fp16
  /// and may overflow. Shape: that of `outputs`.
  /// Errors: c10::ValueError if `outputs` is undefined.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);
  /// The same for each tensor of a tree, which keeps its structure. A tree with anything else in it (torch:
  /// "outputs must be a Tensor or an iterable of Tensors") does not compile.
  template <TensorTree Tree>
  Tree scale(const Tree& outputs);

  /// Divides every gradient of `optimizer` by the scale, in place, and notes any inf or nan. Call it before
  /// clipping or reading gradients, once an iteration; step() does it otherwise.
  /// Errors: c10::ValueError for fp16 gradients, c10::NotImplementedError for complex ones, c10::Error if
  ///         called before scale(), twice, or after step(). Gradients are then untouched.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Steps `optimizer` unless a gradient overflowed; returns whether it called optimizer.step(). One that is
  /// a StepSupportsAmpScaling is always called and drops an overflowed step itself: found_inf() tells.
  /// Errors: those of unscale_(); c10::Error if it was called since the last update(), or no parameter has a
  ///         gradient.
  bool step(torch::optim::Optimizer& optimizer);
  /// For a disabled scaler: the loss that optimizer.step(closure) returns.
  /// Errors: c10::Error if enabled: a closure would need its own scaling, checking and skipping.
  at::Tensor step(torch::optim::Optimizer& optimizer, const LossClosure& closure);

  /// Ends the iteration: backs off after an overflow in any optimizer, grows after `growth_interval` clean
  /// iterations.
  /// Errors: c10::Error if no gradients were checked since the last update().
  void update();
  /// Ends the iteration with this scale instead; the growth tracker stays.
  /// Errors: c10::ValueError if `new_scale` does not fit in float32.
  void update(double new_scale);
  /// The same with the value of a tensor of one element, which is copied, so nothing waits for the device.
  /// Errors: c10::ValueError if it is not on the scaler's kind of device, not of one element, or requires
  ///         grad.
  void update(const at::Tensor& new_scale);

  /// Drops what was noted of `optimizer` in this iteration, for a step that is not taken after all: its next
  /// gradients are unscaled and checked anew.
  void forget(const torch::optim::Optimizer& optimizer);

  /// What the check of `optimizer`'s gradients found in this iteration: nonzero for an overflow.
  /// Shape: 0-dim float32 on the scale's device; undefined if nothing was checked.
  /// Sync: none.
  at::Tensor found_inf(const torch::optim::Optimizer& optimizer) const;

  bool is_enabled() const { return options_.enabled; }
  /// The scale; 1 if disabled.
  /// Sync: reads one value from the device.
  double get_scale() const;
  /// Clean iterations since the scale last changed or would have.
  /// Sync: reads one value from the device.
  int64_t get_growth_tracker() const;
  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  int64_t get_growth_interval() const { return options_.growth_interval; }
  /// As in torch, these take any value. An interval at or below the growth tracker is not met before the
  /// tracker's next reset.
  void set_growth_factor(double growth_factor) { options_.growth_factor = growth_factor; }
  void set_backoff_factor(double backoff_factor) { options_.backoff_factor = backoff_factor; }
  void set_growth_interval(int64_t growth_interval) { options_.growth_interval = growth_interval; }

  /// What load_state_dict(), here or in Python, needs to go on; empty if disabled. Take it after update().
  GradScalerState state_dict() const;
  /// Goes on from a saved state; the state of the current iteration stays. Keys beyond torch's five are
  /// ignored; a disabled scaler ignores everything.
  /// Errors: c10::Error if `state` is empty; c10::ValueError if a key is missing or a value is none that a
  ///         scaler can have. The scaler is then unchanged.
  void load_state_dict(const GradScalerState& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  /// One value on several devices, copied to each when first asked for.
  using PerDevice = std::vector<std::pair<at::Device, at::Tensor>>;
  struct OptimizerState {
    const torch::optim::Optimizer* optimizer;
    Stage stage = Stage::kReady;
    PerDevice found_inf;
  };

  at::Tensor scale_leaf(const at::Tensor& output, PerDevice& scales);
  void check_initialized(const char* function) const;
  OptimizerState& state_of(const torch::optim::Optimizer& optimizer);
  /// Multiplies by `inv_scale` and returns the overflow flags of each device that holds gradients.
  PerDevice check_and_unscale(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
                              bool allow_fp16);
  void step_self_unscaling(torch::optim::Optimizer& optimizer, OptimizerState& state);
  /// Undefined if `flags` is empty.
  at::Tensor sum_on_scale_device(const PerDevice& flags) const;

  at::Device device_;
  GradScalerOptions options_;  // init_scale is also what a state loaded before the first scale() sets
  int64_t init_growth_tracker_ = 0;
  at::Tensor scale_;           // 0-dim float32, undefined before the first scale()
  at::Tensor growth_tracker_;  // 0-dim int32, likewise
  std::vector<OptimizerState> optimizers_;
};

template <TensorTree Tree>
Tree GradScaler::scale(const Tree& outputs) {
  if (!is_enabled()) return outputs;
  PerDevice scales;
  return map_tensors(outputs, [&](const at::Tensor& output) { return scale_leaf(output, scales); });
}

}  // namespace mantissa
