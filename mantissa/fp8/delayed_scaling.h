#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// The scales of some tensors and the largest magnitudes that they have had, in float32 on one device. Row 0 of the
/// history is that of the step in progress; the others are those of earlier steps, the oldest one first.
struct DelayedScalingState {
  at::Tensor scale;         ///< [tensors]
  at::Tensor amax_history;  ///< [steps, tensors]
};

/// Returns the state before the first step: scales of 1 and a history of zeros.
/// Errors: those of check_recipe(); c10::ValueError for a negative number of tensors.
DelayedScalingState delayed_scaling_state(const DelayedScaling& recipe, int64_t tensors);

/// Quantizes tensor number `tensor` by the scale of earlier steps, and records its magnitude in row 0: several calls
/// in one step leave the largest one.
/// Errors: those of quantize_fp8(); c10::ValueError for a number that the state does not have, and for a state of another
///         shape than delayed_scaling_state() gives.
QuantizedFp8 quantize_fp8_delayed(const at::Tensor& x, at::ScalarType dtype, DelayedScalingState& state,
                                  int64_t tensor);

/// Sets each value of `amax` [n] to the largest one of all ranks, in place.
using AmaxReduction = std::function<void(const at::Tensor& amax)>;

/// Ends a step: moves the histories on and sets the scales for the next step. `dtype` is that of the tensors.
///
/// Numerics: the scale is fp8_max 2^-margin / amax, rounded once to float32; if that is infinite, float32's largest number. A tensor
///           whose amax of this step is 0 keeps its history and scale. An inf in the history keeps the scale until it
///           has left; NaN counts as absent. A scale whose inverse would be infinite, such as 0, is not taken: the old
///           one stays. With `amax_compute` the history always moves on, the scale is
///           fp8_max / amax / 2^margin, and NaN keeps the scale: Transformer Engine's two paths differ so.
/// Ranks:    with reduce_amax and a reduction, the amaxes of all states are reduced in one call, whose tensor has
///           the same size on each rank: all ranks pass the same states in the same order.
/// Errors:   c10::ValueError for a state of another shape than delayed_scaling_state() gives, or if `amax_compute`
///           returns another shape; those of check_recipe(), and what the two functions throw. No state has changed then.
/// Source:   Transformer Engine's delayed_scaling.cu and its fallback in Python.
void update_scales(c10::ArrayRef<DelayedScalingState*> states, at::ScalarType dtype,
                   const DelayedScaling& recipe, const AmaxReduction& reduction = nullptr);

/// Changes the number of steps of the history: keeps its first rows, or adds rows of zeros at its end.
/// Errors: c10::ValueError for less than 1 step.
void resize_history(DelayedScalingState& state, int64_t steps);

}  // namespace mantissa
