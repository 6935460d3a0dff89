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

class StepSupportsAmpScaling;
struct GradientRecord;

/// Where the gradients of an optimizer stand between their backward pass and their step.
enum class GradientStage {
  kScaled,    ///< as the backward pass left them
  kChecked,   ///< looked at for inf and nan, perhaps clipped, and still scaled: the step will divide them
  kUnscaled,  ///< in the loss's own units
  kStepped    ///< used by a step, or dropped by it
};

struct GradScalerOptions {
  double init_scale = 65536.0;     ///< the first scale; a plain factor
  double growth_factor = 2.0;      ///< times this after `growth_interval` clean steps in a row
  double backoff_factor = 0.5;     ///< times this after an overflow; 0: down to min_scale at once
  int64_t growth_interval = 2000;  ///< clean steps before the scale grows; a huge value keeps it fixed
  bool enabled = true;             ///< false: every call passes through as if there were no scaler

  /// The scale never leaves [min_scale, max_scale], however it is set. The default floor is the smallest
  /// normal float32, 2^-126: until there all numbers are torch's, and below it torch's reciprocal is inf and
  /// the next clean step writes that into the parameters. 0: no floor, as torch, down to 0.
  double min_scale = std::numeric_limits<float>::min();
  double max_scale = std::numeric_limits<float>::max();
  /// The scale backs off at the overflow of this number and at each one after it, until `growth_interval`
  /// clean iterations in a row refill the count (Megatron-LM's and DeepSpeed's rule; Apex's kernel refills it
  /// at every clean iteration). Steps are skipped all the same. 1: at every overflow, as torch.
  int64_t hysteresis_steps = 1;

  /// After this many steps of an optimizer skipped in a row, and again after as many more, a warning names
  /// the first parameters with inf or nan in their gradients, as these were before they were clipped. It
  /// alone reads them on the host, in unscale_() where the coming step may be the one to warn of. 0: never.
  /// Not for StepSupportsAmpScaling optimizers, whose skips the host never learns unless note_step() tells.
  int64_t warn_after_skips = 10;
  /// What warnings and StepResult call a parameter; by default "group 0, parameter 3".
  std::function<std::string(const at::Tensor& parameter)> parameter_name{};

  /// Lets unscale_() divide fp16 gradients in place, where torch refuses: what falls below 6e-8 after the
  /// division is lost, which the scale was to prevent. A StepSupportsAmpScaling optimizer loses nothing if
  /// unscale_() is not called, because it divides in its step, and needs no such permission.
  bool allow_fp16_gradients = false;
};

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
///           an inf or nan in the gradients as they come in. The scale stays in [min_scale, max_scale].
/// Sync:     step() reads one flag from each device that holds gradients, and none with a
///           StepSupportsAmpScaling optimizer; get_scale(), get_growth_tracker() and state_dict() read what
///           they return. Nothing else waits for a device, unless the warning of warn_after_skips is due.
///           With such optimizers a whole iteration, from scale() to update(), can be captured in a CUDA
///           graph: call scale() once before, so that the scale exists. Scale and trackers keep their memory
///           for the scaler's life, so update(new_scale) and load_state_dict() act on later replays; factors
///           and limits are those of the capture.
/// Threads:  one at a time.
/// Errors:   c10::ValueError for options out of range and fp16 gradients; c10::TypeError for LBFGS;
///           c10::Error for calls out of order.
/// Source:   Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; spec section 3 (GS-1 to GS-55).
/// Example:  grad_scaler_test.cpp, GradScaler.TrainsOneStep
class GradScaler {
 public:
  using LossClosure = std::function<at::Tensor()>;

  /// For training on `device`. CUDA without a GPU warns once and disables the scaler.
  explicit GradScaler(at::Device device, const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
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
  /// Errors: c10::ValueError for fp16 gradients unless they are allowed, c10::NotImplementedError for complex
  ///         ones, c10::TypeError for LBFGS, c10::Error if called before scale(), twice, or after step().
  ///         Gradients are then untouched.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Clips the gradients of `optimizer` by their joint norm, unscaling them first unless that was done;
  /// returns the norm before, in the loss's own units, 0-dim on the first gradient's device.
  ///
  /// Numerics: mantissa::clip_grad_norm_() on unscaled gradients. fp16 gradients of a StepSupportsAmpScaling
  ///           optimizer stay scaled and as they are: their norm is taken in float32, for orders other than 1
  ///           to 2 and inf of the unscaled values, whose powers overflow less, and the factor
  ///           min(1, max_norm / (norm + 1e-6)) goes into the coming step's grad_scale.
  /// Sync:     none.
  /// Errors:   those of mantissa::clip_grad_norm_() and of unscale_(), before anything is changed.
  at::Tensor clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type = 2.0);
  /// The same by value: each element to [-clip_value, clip_value], in the loss's own units.
  ///
  /// Numerics: scaled fp16 gradients (see clip_grad_norm_()) are clamped to clip_value * scale, rounded to
  ///           fp16; where that is beyond fp16 no finite element is changed, and none had to be.
  /// Sync:     none.
  /// Errors:   those of mantissa::clip_grad_value_() and of unscale_(), before anything is changed.
  void clip_grad_value_(torch::optim::Optimizer& optimizer, double clip_value);

  /// Steps `optimizer` unless a gradient overflowed; returns whether it called optimizer.step(). One that is
  /// a StepSupportsAmpScaling is always called and drops an overflowed step itself: found_inf() tells.
  /// Errors: those of unscale_(); c10::Error if it was called since the last update(), or no parameter has a
  ///         gradient.
  bool step(torch::optim::Optimizer& optimizer);
  /// For a disabled scaler: the loss that optimizer.step(closure) returns.
  /// Errors: c10::Error if enabled: a closure would need its own scaling, checking and skipping.
  at::Tensor step(torch::optim::Optimizer& optimizer, const LossClosure& closure);

  /// Ends the iteration: backs off after an overflow in any optimizer (see also hysteresis_steps), grows
  /// after `growth_interval` clean iterations.
  /// Errors: c10::Error if no gradients were checked since the last update().
  void update();
  /// Ends the iteration with this scale instead, brought into [min_scale, max_scale]; the trackers stay.
  /// 0 is taken, as in torch, and becomes min_scale.
  /// Errors: c10::ValueError if `new_scale` is negative or does not fit in float32.
  void update(double new_scale);
  /// The same with the value of a tensor of one element, which is copied, so nothing waits for the device:
  /// what is below min_scale, negative numbers too, becomes that.
  /// Errors: c10::ValueError if it is not on the scaler's kind of device, not of one element, or requires
  ///         grad.
  void update(const at::Tensor& new_scale);

  /// Drops what was noted of `optimizer` in this iteration, for a step that is not taken after all: its next
  /// gradients are unscaled and checked anew.
  void forget(const torch::optim::Optimizer& optimizer);

  /// What the last step() of `optimizer` did; that of a StepSupportsAmpScaling optimizer is read when asked for.
  StepResult last_step(const torch::optim::Optimizer& optimizer) const;

  /// Reports whether the last step of a StepSupportsAmpScaling optimizer changed anything, for the warning of
  /// warn_after_skips. step() knows this of all other optimizers.
  void note_step(const torch::optim::Optimizer& optimizer, bool stepped);

  /// For a loop that does not say where an iteration ends, as the loop around a Precision does not: the
  /// functions that follow take the place of update(). The gradients themselves show what has happened to them.
  ///
  /// Call begin_backward() before each backward pass. It ends the iteration if a step was taken and no
  /// optimizer waits for its own. An optimizer whose unscaled gradients were written anew since the last
  /// backward pass was left out by the loop, and starts afresh.
  void begin_backward();
  /// Call end_iteration() when the loop has ended: it ends the iteration if a step was taken in it, and drops
  /// what was noted of gradients that wait for theirs. abandon_iteration() drops all that this iteration has
  /// found, and does not move the scale.
  void end_iteration();
  void abandon_iteration();
  /// Call begin_step() before the first look at the gradients of `optimizer`. It ends the iteration if
  /// `optimizer` has already stepped in it: the optimizers that still wait were left out by the loop. Gradients
  /// of `optimizer` that were written anew since it was last looked at start afresh.
  void begin_step(const torch::optim::Optimizer& optimizer);
  /// The stage of the gradients that `optimizer` has now, also across iterations: gradients that a step has
  /// used stay kStepped until a backward pass writes others.
  GradientStage gradient_stage(const torch::optim::Optimizer& optimizer) const;

  /// Says what warnings and StepResult call a parameter, unless the options did.
  void set_parameter_name(std::function<std::string(const at::Tensor& parameter)> name);

  /// What the check of `optimizer`'s gradients found in this iteration: nonzero for an overflow.
  /// Shape: 0-dim float32 on the scale's device; undefined if nothing was checked.
  /// Sync: none.
  at::Tensor found_inf(const torch::optim::Optimizer& optimizer) const;

  bool is_enabled() const { return options_.enabled; }
  /// The scale; 1 if disabled.
  /// Sync: reads one value from the device.
  double get_scale() const;
  /// The scale as a 0-dim float32 tensor of its own, which later updates leave alone.
  /// Sync: none.
  at::Tensor scale_on_device() const;
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

  /// What load_state_dict(), here or in Python, needs to resume; empty if disabled. Take it after update().
  GradScalerState state_dict() const;
  /// state_dict() as it will be after the update that is due, for a loop that does not call update() itself:
  /// see begin_backward().
  GradScalerState next_state_dict() const;
  /// Goes on from a saved state; the state of the current iteration stays. Without _hysteresis_tracker the
  /// count starts full. Foreign keys are ignored; a disabled scaler ignores everything.
  /// Errors: c10::Error if `state` is empty; c10::ValueError if a key is missing or a value is none that a
  ///         scaler can have: a scale that is not positive (0, which torch's scaler underflows to, is taken
  ///         where min_scale is 0), factors and an interval that the constructor refuses. The scaler is then
  ///         unchanged.
  void load_state_dict(const GradScalerState& state);

 private:
  /// One value on several devices, copied to each when first asked for.
  using PerDevice = std::vector<std::pair<at::Device, at::Tensor>>;
  /// The tensors that move at the end of an iteration; undefined before the first scale().
  struct Scale {
    at::Tensor value;               ///< 0-dim float32
    at::Tensor growth_tracker;      ///< 0-dim int32
    at::Tensor hysteresis_tracker;  ///< 0-dim int32: overflows until a backoff; undefined without hysteresis
  };

  at::Tensor scale_leaf(const at::Tensor& output, PerDevice& scales);
  void create_state(at::Device device);
  void check_initialized(const char* function) const;
  void check_usable(const char* function, const torch::optim::Optimizer& optimizer) const;
  static void check_factors(const char* function, const GradScalerOptions& options);
  /// Null if nothing was noted of `optimizer`.
  GradientRecord* find_record(const torch::optim::Optimizer& optimizer) const;
  GradientRecord& record_of(const torch::optim::Optimizer& optimizer);
  /// Multiplies by `inv_scale` and returns the overflow flags of each device that holds gradients.
  PerDevice check_and_unscale(torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
                              bool allow_fp16);
  /// Notes any inf or nan and leaves the gradients scaled.
  void check(torch::optim::Optimizer& optimizer, GradientRecord& record);
  void step_self_unscaling(torch::optim::Optimizer& optimizer, StepSupportsAmpScaling& scaling,
                           GradientRecord& record);
  /// What a step of still scaled gradients divides them by.
  at::Tensor divisor(const StepSupportsAmpScaling& scaling, const GradientRecord& record) const;
  /// Where gradients are clipped while scaled: the optimizer's side of it. Otherwise they are unscaled, if
  /// they are not yet, and the result is null.
  StepSupportsAmpScaling* unscale_or_check(torch::optim::Optimizer& optimizer);
  /// Undefined if `flags` is empty.
  at::Tensor sum_on_scale_device(const PerDevice& flags) const;
  /// Whether a gradient overflowed in this iteration, of any optimizer; undefined if none was checked.
  at::Tensor any_found_inf() const;
  /// Moves `scale` by what this iteration found, in place.
  void move(const Scale& scale, const at::Tensor& found_inf) const;
  /// Undoes the backoff of `before` while overflows are tolerated.
  void apply_hysteresis(const Scale& scale, const at::Tensor& before, const at::Tensor& found_inf) const;
  void bound(const at::Tensor& scale) const;
  double bounded(double scale) const;
  GradScalerState state_of(const Scale& scale) const;
  /// Whether a step was taken in this iteration, whose end has not come.
  bool update_is_due() const;
  static bool has_overflowed(const GradientRecord& record);
  bool warns_at(int64_t skips) const;
  std::string nonfinite_gradients(const GradientRecord& record) const;

  at::Device device_;
  GradScalerOptions options_;  // init_scale is also what a state loaded before the first scale() sets
  int64_t init_growth_tracker_ = 0;
  int64_t init_hysteresis_tracker_ = 0;
  Scale scale_;
  std::vector<std::shared_ptr<GradientRecord>> records_;  // one for each optimizer
};

template <TensorTree Tree>
Tree GradScaler::scale(const Tree& outputs) {
  if (!is_enabled()) return outputs;
  PerDevice scales;
  return map_tensors(outputs, [&](const at::Tensor& output) { return scale_leaf(output, scales); });
}

}  // namespace mantissa
