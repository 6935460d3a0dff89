#include "mantissa/fp8/delayed_scaling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "mantissa/fp8/delayed_scaling_internal.h"
#include "mantissa/fp8/device_path_internal.h"

namespace mantissa {
namespace {

/// Throws c10::ValueError unless the state has the shape that delayed_scaling_state() gives it.
void check_state(const DelayedScalingState& state, const char* name) {
  const auto is_of = [](const at::Tensor& tensor, int64_t dimensions) {
    return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.dim() == dimensions &&
           tensor.is_contiguous() && !tensor.is_neg();
  };
  const auto shape_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.sizes() : at::IntArrayRef();
  };
  TORCH_CHECK_VALUE(is_of(state.scale, 1) && is_of(state.amax_history, 2) &&
                        state.amax_history.size(0) >= 1 &&
                        state.amax_history.size(1) == state.scale.numel() &&
                        state.amax_history.device() == state.scale.device(),
                    name, ": the state has scales of ", shape_of(state.scale), " and a history of ",
                    shape_of(state.amax_history),
                    "; they must be [tensors] and [steps, tensors], contiguous, in float32 on one device");
}

constexpr float kLargestFloat = std::numeric_limits<float>::max();

/// Returns the scale that follows `scale`. `quotient` maps an amax to its scale. A scale stays where the next one would be
/// 0, or so small that its inverse is infinite: no value could be restored.
template <class Quotient>
float next_scale(float scale, float amax, const Quotient& quotient) {
  if (!std::isfinite(amax) || amax <= 0) return scale;
  const float next = quotient(amax);
  if (std::isinf(next)) return kLargestFloat;
  return std::isinf(1 / next) ? scale : next;
}

/// One tensor's column of a history.
class Column {
 public:
  Column(const DelayedScalingState& state, int64_t tensor)
      : data_(state.amax_history.mutable_data_ptr<float>() + tensor),
        stride_(state.amax_history.size(1)),
        steps_(state.amax_history.size(0)) {}

  float& operator[](int64_t step) const { return data_[step * stride_]; }

  /// Returns the largest number of all steps; NaN if there is none.
  float largest() const {
    float largest = (*this)[0];
    for (int64_t i = 1; i < steps_; ++i) largest = std::fmax(largest, (*this)[i]);
    return largest;
  }

  void roll() const {
    const float last = (*this)[0];
    for (int64_t i = 1; i + 1 < steps_; ++i) (*this)[i] = (*this)[i + 1];
    (*this)[steps_ - 1] = last;
    (*this)[0] = 0;
  }

 private:
  float* data_;
  int64_t stride_, steps_;
};

/// Returns max 2^-margin / amax, rounded once: no step leaves the range of a double.
float quotient_of(float max, int64_t margin, float amax) {
  return static_cast<float>(std::ldexp(static_cast<double>(max) / amax, -static_cast<int>(margin)));
}

void update(DelayedScalingState& state, float max, const DelayedScaling& recipe) {
  if (!fp8::uses_cpu_kernels(state.scale)) return advance_by_operators(state, max, recipe);
  float* const scale = state.scale.mutable_data_ptr<float>();
  for (int64_t i = 0; i < state.scale.numel(); ++i) {
    const Column column(state, i);
    const float last = column[0];
    if (last == 0) continue;  // the tensor did not occur, or was zero
    const float amax = recipe.amax_compute_algo == AmaxComputeAlgo::kMax ? column.largest() : last;
    column.roll();
    scale[i] = next_scale(scale[i], amax, [&](float x) { return quotient_of(max, recipe.margin, x); });
  }
}

/// Returns what the recipe's function finds in the history.
at::Tensor computed_amax(const DelayedScalingState& state, const DelayedScaling& recipe) {
  // A copy: the function may keep or change it.
  const at::Tensor amax = recipe.amax_compute(state.amax_history.clone());
  TORCH_CHECK_VALUE(amax.defined() && amax.sizes() == state.scale.sizes(),
                    "DelayedScaling: amax_compute returned ",
                    amax.defined() ? c10::str("shape ", amax.sizes()) : "an undefined tensor",
                    " for a history of ", state.amax_history.sizes(), "; return one amax for each column");
  return amax.detach().to(state.scale.device(), at::kFloat).contiguous();
}

void update_by(const at::Tensor& amax, DelayedScalingState& state, float max, int64_t margin) {
  if (!fp8::uses_cpu_kernels(state.scale)) return advance_by_operators(state, amax, max, margin);
  float* const scale = state.scale.mutable_data_ptr<float>();
  const float* const found = amax.const_data_ptr<float>();
  for (int64_t i = 0; i < state.scale.numel(); ++i) {
    Column(state, i).roll();
    scale[i] = next_scale(scale[i], found[i],
                          [&](float x) { return std::ldexp(max / x, -static_cast<int>(margin)); });
  }
}

}  // namespace

DelayedScalingState delayed_scaling_state(const DelayedScaling& recipe, int64_t tensors) {
  check_recipe(recipe);
  TORCH_CHECK_VALUE(tensors >= 0, "delayed_scaling_state: got ", tensors, " tensors");
  return {at::ones({tensors}, at::kFloat), at::zeros({recipe.amax_history_len, tensors}, at::kFloat)};
}

QuantizedFp8 quantize_fp8_delayed(const at::Tensor& x, at::ScalarType dtype, DelayedScalingState& state,
                                  int64_t tensor) {
  check_state(state, "quantize_fp8_delayed");
  TORCH_CHECK_VALUE(tensor >= 0 && tensor < state.scale.size(0), "quantize_fp8_delayed: there is no tensor ",
                    tensor, " among the ", state.scale.size(0), " of the state");
  return quantize_fp8(x, dtype, state.scale[tensor], state.amax_history[0][tensor]);
}

std::vector<DelayedScalingState> copies_of(c10::ArrayRef<DelayedScalingState*> states) {
  std::vector<DelayedScalingState> copies;
  copies.reserve(states.size());
  for (const DelayedScalingState* const state : states) {
    check_state(*state, "update_scales");
    copies.push_back({state->scale.detach().clone(), state->amax_history.detach().clone()});
  }
  return copies;
}

void reduce_amaxes(c10::ArrayRef<DelayedScalingState> states, const AmaxReduction& reduction) {
  std::vector<at::Tensor> rows;
  rows.reserve(states.size());
  for (const DelayedScalingState& state : states) rows.push_back(state.amax_history[0]);
  // A layer that has not run yet has its state on the CPU.
  at::Device device = at::kCPU;
  for (const at::Tensor& row : rows)
    if (!row.is_cpu()) device = row.device();
  std::vector<at::Tensor> there;
  there.reserve(rows.size());
  for (const at::Tensor& row : rows) there.push_back(row.to(device));
  const at::Tensor all = at::cat(there);
  reduction(all);
  int64_t begin = 0;
  for (const at::Tensor& row : rows) {
    row.copy_(all.narrow(0, begin, row.size(0)));
    begin += row.size(0);
  }
}

void advance(DelayedScalingState& state, at::ScalarType dtype, const DelayedScaling& recipe) {
  const float max = fp8_max(dtype);
  if (recipe.amax_compute)
    update_by(computed_amax(state, recipe), state, max, recipe.margin);
  else
    update(state, max, recipe);
}

void update_scales(c10::ArrayRef<DelayedScalingState*> states, at::ScalarType dtype,
                   const DelayedScaling& recipe, const AmaxReduction& reduction) {
  fp8_max(dtype);  // for its error, also without states
  check_recipe(recipe);
  std::vector<DelayedScalingState> next = copies_of(states);
  if (recipe.reduce_amax && reduction && !next.empty()) reduce_amaxes(next, reduction);
  for (DelayedScalingState& state : next) advance(state, dtype, recipe);
  commit(next, states);
}

void resize_history(DelayedScalingState& state, int64_t steps) {
  TORCH_CHECK_VALUE(steps >= 1, "resize_history: got ", steps, " steps; a history has at least 1");
  check_state(state, "resize_history");
  const int64_t kept = std::min(steps, state.amax_history.size(0));
  at::Tensor history = at::zeros({steps, state.amax_history.size(1)}, state.amax_history.options());
  history.narrow(0, 0, kept).copy_(state.amax_history.narrow(0, 0, kept));
  state.amax_history = history;
}

}  // namespace mantissa
