#include <cmath>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "mantissa/fp8/delayed_scaling_internal.h"

namespace mantissa {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns the history after a step: row 0 at its end, and zeros in its place.
at::Tensor rolled(const at::Tensor& history) {
  const at::Tensor last = history.narrow(0, 0, 1), none = at::zeros_like(last);
  const int64_t steps = history.size(0);
  return steps == 1 ? none : at::cat({none, history.narrow(0, 2, steps - 2), last});
}

/// Returns the largest number of each column; NaN if there is none.
at::Tensor largest(const at::Tensor& history) {
  const at::Tensor found = at::nan_to_num(history, -kInfinity, kInfinity, -kInfinity).amax(0);
  return at::where(found == -kInfinity, std::numeric_limits<float>::quiet_NaN(), found);
}

/// Returns the scales that follow `scale`, where `quotient` are those of the amaxes.
at::Tensor next_scales(const at::Tensor& scale, const at::Tensor& amax, const at::Tensor& quotient) {
  const at::Tensor next = at::where(at::isinf(quotient), std::numeric_limits<float>::max(), quotient);
  // No value could be restored from codes whose scale has an infinite inverse.
  const at::Tensor has_inverse = at::isinf(next.reciprocal()).logical_not();
  return at::where(at::isfinite(amax).logical_and(amax > 0).logical_and(has_inverse), next, scale);
}

}  // namespace

void advance_by_operators(DelayedScalingState& state, float max, const DelayedScaling& recipe) {
  const at::Tensor& history = state.amax_history;
  const at::Tensor last = history.select(0, 0);
  const at::Tensor amax = recipe.amax_compute_algo == AmaxComputeAlgo::kMax ? largest(history) : last;
  const at::Tensor has_last = last != 0;
  // In float64, whose range no step leaves; then one rounding.
  const double dividend = std::ldexp(static_cast<double>(max), -static_cast<int>(recipe.margin));
  const at::Tensor quotient = (at::zeros_like(amax, amax.options().dtype(at::kDouble)) + dividend)
                                  .div_(amax.to(at::kDouble))
                                  .to(at::kFloat);
  const at::Tensor scale = next_scales(state.scale, amax, quotient);
  state.scale = at::where(has_last, scale, state.scale);
  state.amax_history = at::where(has_last, rolled(history), history);
}

void advance_by_operators(DelayedScalingState& state, const at::Tensor& amax, float max, int64_t margin) {
  const at::Tensor quotient = (at::zeros_like(amax) + max).div_(amax) *
                              static_cast<float>(std::ldexp(1.0, -static_cast<int>(margin)));
  state.scale = next_scales(state.scale, amax, quotient);
  state.amax_history = rolled(state.amax_history);
}

void advance_together(c10::ArrayRef<DelayedScalingState*> states, at::ScalarType dtype,
                      const DelayedScaling& recipe) {
  std::vector<at::Tensor> scales, histories;
  for (const DelayedScalingState* const state : states) {
    scales.push_back(state->scale);
    histories.push_back(state->amax_history);
  }
  DelayedScalingState all = {at::cat(scales), at::cat(histories, 1)};
  advance(all, dtype, recipe);
  int64_t begin = 0;
  for (DelayedScalingState* const state : states) {
    const int64_t count = state->scale.numel();
    *state = {all.scale.narrow(0, begin, count), all.amax_history.narrow(1, begin, count)};
    begin += count;
  }
}

void commit(c10::ArrayRef<DelayedScalingState> next, c10::ArrayRef<DelayedScalingState*> states) {
  std::vector<at::Tensor> from, to;
  for (size_t i = 0; i < states.size(); ++i) {
    from.insert(from.end(), {next[i].scale, next[i].amax_history});
    to.insert(to.end(), {states[i]->scale, states[i]->amax_history});
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

}  // namespace mantissa
