#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/grad_scaler_state.h"

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

class GradScaler;
struct ScalerData;

/// Where the gradients of an optimizer stand between their backward pass and their step.
enum class GradientStage : uint8_t {
  kScaled,    ///< as the backward pass left them
  kChecked,   ///< checked for inf and nan, perhaps clipped, and still scaled: the step will unscale them
  kUnscaled,  ///< in the loss's own units
  kMixed,   ///< a backward pass has added scaled gradients to checked or unscaled ones: no step can use them
  kStepped  ///< used by a step, or dropped by it
};

/// Ends the iterations of a GradScaler in a loop that does not call GradScaler::update(), such as the loop
/// around a Precision: it sees from the gradients which of them a step has used. It also saves and restores
/// gradients between their backward pass and their step.
///
/// A loop that calls update() itself needs no tracker. GradScaler's other functions are called as usual.
///
///     tracker.begin_backward();
///     scaler.scale(loss).backward();
///     tracker.end_backward();
///     tracker.begin_step(optimizer);
///     scaler.step(optimizer);             // the next begin_backward() moves the scale
///
/// With a disabled scaler, nothing happens.
///
/// Threads: one at a time.
/// Example: gradient_record_test.cpp, GradientStage.FollowsTheGradientsThemselves
class IterationTracker {
 public:
  /// `scaler` must outlive the tracker; it may be moved.
  explicit IterationTracker(GradScaler& scaler);

  /// Call watch() once an optimizer was made. If an optimizer accumulates gradients over several iterations of
  /// others and the scale moves meanwhile, these gradients are multiplied by the new scale over the old one.
  /// Without watch(), this starts at the optimizer's first step.
  void watch(const torch::optim::Optimizer& optimizer);

  /// Call begin_backward() before each backward pass and end_backward() after it. What is written to gradients
  /// between the two counts as computed by that pass; what the loop writes at another time, for example to
  /// clip gradients, does not. Without end_backward(), the pass ends at the next begin_backward(). If hooks of
  /// the loop may write to gradients between begin_backward() and the pass, call restart_backward() after
  /// them.
  ///
  /// begin_backward() ends the iteration if a step was taken and no optimizer still waits for its step. If the
  /// gradients of an optimizer that waits were cleared and computed anew, the loop has left that optimizer
  /// out; its gradients count as new. If a backward pass has added to them instead, begin_step(), step() and
  /// clipping refuse the sum.
  ///
  /// A backward pass without these two calls or Precision::backward() around it is not seen. What it adds
  /// after a step counts as gradients that the step has used, so they do not follow the scale when that moves.
  /// Sync:    none, unless a backward pass has written gradients of an optimizer that waits; the host then
  ///          reads whether they were 0 before.
  /// Threads: the backward pass may accumulate on any threads.
  void begin_backward();
  void restart_backward();
  void end_backward();

  /// Call begin_step() before the first look at the gradients of `optimizer`. It ends the iteration if
  /// `optimizer` has already stepped in it; gradients of other optimizers that still wait belong to the next
  /// one. If gradients of `optimizer` were cleared and computed anew since they were last checked, they count
  /// as new.
  /// Errors: c10::Error if a backward pass has added to gradients that were already unscaled or clipped
  ///         (kMixed). Nothing has changed then.
  void begin_step(const torch::optim::Optimizer& optimizer);

  /// Call end_iteration() when the loop has ended. It ends the iteration if a step was taken in it, and forgets
  /// the gradients that no step has used.
  void end_iteration();
  /// Forgets everything that this iteration has found, and does not move the scale.
  void abandon_iteration();

  /// Returns the stage of the gradients that `optimizer` has now, also across iterations: gradients that a
  /// step has used stay kStepped until a backward pass writes new ones.
  GradientStage gradient_stage(const torch::optim::Optimizer& optimizer) const;
  /// Returns what the next step of `optimizer` divides its gradients by in addition to the scale, because they
  /// were clipped while scaled. Shape: 0-dim, on the scale's device; undefined if there is no such divisor.
  /// Sync: none.
  at::Tensor clip_divisor(const torch::optim::Optimizer& optimizer) const;
  /// Sets the stage of gradients that were loaded from a checkpoint, which was written between a backward pass
  /// and its step. `stage` and `clip_divisor` are what gradient_stage() and clip_divisor() returned when the
  /// gradients were saved. Gradients that wait for their step are checked for inf and nan again. Call it after
  /// the gradients and the state of the scaler have been loaded.
  /// `scale`: the scale that scaled gradients carry, if it may differ from the scaler's: next_state_dict() has
  /// the scale of the next iteration. Gradients that no one has looked at are then multiplied by the ratio.
  /// Sync:   none.
  /// Errors: c10::ValueError for a `clip_divisor` that `stage` does not have. Nothing has changed then.
  void restore_gradient_stage(const torch::optim::Optimizer& optimizer, GradientStage stage,
                              const at::Tensor& clip_divisor = {}, const at::Tensor& scale = {});
  /// Returns GradScaler::state_dict() as it will be when the iteration has ended.
  /// Sync: as state_dict().
  GradScalerState next_state_dict() const;

 private:
  ScalerData& data_;
};

}  // namespace mantissa
