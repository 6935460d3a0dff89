#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/amp/gradients_internal.h"
#include "mantissa/amp/nonfinite_gradients.h"
#include "mantissa/amp/optimizer_kind.h"
#include "mantissa/amp/scaler_data_internal.h"
#include "mantissa/core/device.h"
#include "mantissa/core/step_scaling.h"

namespace mantissa {
namespace {

constexpr double kMaxScale = std::numeric_limits<float>::max();
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();  // the trackers are int32

/// Checks every gradient before any is touched, so that a refused optimizer is left unchanged.
void check_gradients(const torch::optim::Optimizer& optimizer, bool allow_fp16) {
  const bool divides = as_self_unscaling(optimizer) != nullptr;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      TORCH_CHECK_VALUE(
          allow_fp16 || gradient.scalar_type() != at::kHalf,
          "GradScaler::unscale_: Attempting to unscale FP16 gradients, which overflow in fp16 itself; ",
          divides
              ? "leave out unscale_(): step() and scaler.clip_grad_norm_(optimizer, max_norm) lose nothing, "
                "because this optimizer divides in its step; or set allow_fp16_gradients and lose what is "
                "small"
              : "keep the parameters in float32 and run the forward pass under Autocast, use bf16, or set "
                "allow_fp16_gradients and lose what is small");
      TORCH_CHECK_NOT_IMPLEMENTED(
          !gradient.is_complex(), "GradScaler::unscale_: not implemented for ", gradient.scalar_type(),
          " gradients; keep complex parameters in an optimizer of their own without the scaler");
    }
  }
}

}  // namespace

void check_factors(const char* function, const GradScalerOptions& options) {
  TORCH_CHECK_VALUE(options.growth_factor > 1.0 && std::isfinite(options.growth_factor), function,
                    ": the growth factor must be > 1.0 and finite; got ", options.growth_factor,
                    " (to keep the scale fixed, use a huge growth_interval)");
  TORCH_CHECK_VALUE(options.backoff_factor >= 0 && options.backoff_factor < 1.0, function,
                    ": the backoff factor must be < 1.0 and at least 0; got ", options.backoff_factor,
                    " (the default is 0.5)");
}

PerDevice check_and_unscale(const torch::optim::Optimizer& optimizer, const at::Tensor& inv_scale,
                            bool allow_fp16) {
  const at::NoGradGuard no_grad;
  check_gradients(optimizer, allow_fp16);
  PerDevice found_inf;
  for (const auto& group : gradient_groups(optimizer)) {
    auto found = std::find_if(found_inf.begin(), found_inf.end(),
                              [&](const auto& flag) { return flag.first == group.device; });
    if (found == found_inf.end())
      found = found_inf.emplace(found, group.device, at::zeros({}, inv_scale.options().device(group.device)));
    at::_amp_foreach_non_finite_check_and_unscale_(group.gradients, found->second,
                                                   on_device(inv_scale, group.device));
  }
  return found_inf;
}

bool has_overflowed(const PerDevice& found_inf) {
  return std::any_of(found_inf.begin(), found_inf.end(),
                     [](const auto& flag) { return flag.second.template item<float>() != 0; });
}

void check_not_mixed(const char* function, const GradientRecord& record) {
  TORCH_CHECK(
      !record.awaits_step() || record.stage_now() != GradientStage::kMixed, function,
      ": a backward pass has added scaled gradients to gradients that were already unscaled or "
      "clipped, so no step can use the sum; run all backward passes of a step before its gradients "
      "are unscaled or clipped, or drop them with optimizer.zero_grad() before the next backward pass");
}

ScalerData::ScalerData(at::Device on, const GradScalerOptions& given) : device(on), options(given) {
  if (options.enabled && device.is_cuda() && cuda_device_count() == 0) {
    TORCH_WARN_ONCE("GradScaler(cuda): CUDA is not available, so gradient scaling is disabled (",
                    why_no_cuda(), "). Pass enabled = false or the CPU to say that this is meant.");
    options.enabled = false;
  }
  if (!options.enabled) return;
  check_factors("GradScaler", options);
  TORCH_CHECK_VALUE(options.init_scale > 0 && options.init_scale <= kMaxScale,
                    "GradScaler: init_scale must be positive and fit in float32; got ", options.init_scale,
                    " (the default is 65536)");
  TORCH_CHECK_VALUE(options.min_scale >= 0 && options.min_scale <= options.init_scale,
                    "GradScaler: min_scale must be from 0 to init_scale, ", options.init_scale, "; got ",
                    options.min_scale, " (0 is no floor)");
  TORCH_CHECK_VALUE(options.max_scale >= options.init_scale && options.max_scale <= kMaxScale,
                    "GradScaler: max_scale must be from init_scale, ", options.init_scale,
                    ", to float32's largest value; got ", options.max_scale,
                    " (leave it out for no ceiling)");
  TORCH_CHECK_VALUE(options.hysteresis_steps > 0 && options.hysteresis_steps <= kMaxCount,
                    "GradScaler: hysteresis_steps must be at least 1 and fit in int32; got ",
                    options.hysteresis_steps, " (1 backs off at every overflow)");
  TORCH_CHECK_VALUE(options.warn_after_skips >= 0, "GradScaler: warn_after_skips must be at least 0; got ",
                    options.warn_after_skips, " (0 never warns)");
  TORCH_CHECK_VALUE(options.growth_interval > 0, "GradScaler: growth_interval must be at least 1; got ",
                    options.growth_interval, " (the default is 2000)");
  init_hysteresis_tracker = options.hysteresis_steps;
}

void ScalerData::create_scale(at::Device on) {
  // Autograd saves the scale for the backward pass; it cannot save a tensor made in inference mode.
  const c10::InferenceMode no_inference(false);
  scale.value = at::full({}, options.init_scale, at::TensorOptions(on).dtype(at::kFloat));
  scale.growth_tracker = at::full({}, init_growth_tracker, scale.value.options().dtype(at::kInt));
  if (options.hysteresis_steps > 1)
    scale.hysteresis_tracker = at::full({}, init_hysteresis_tracker, scale.growth_tracker.options());
}

void ScalerData::check_usable(const char* function, const torch::optim::Optimizer& optimizer) const {
  TORCH_CHECK_TYPE(
      !has_line_search(optimizer), "GradScaler::", function,
      ": LBFGS evaluates its loss several times a step, which a gradient scaler cannot follow; use "
      "bf16, float32 or another optimizer");
  check_initialized(function);
}

void ScalerData::check_initialized(const char* function) const {
  TORCH_CHECK(
      scale.value.defined(), "GradScaler::", function, ": attempted ", function,
      " before the scale exists; this may indicate that scaler.scale(loss) was not used earlier in the "
      "iteration: call scaler.scale(loss).backward()");
}

GradientRecord* ScalerData::find_record(const torch::optim::Optimizer& optimizer) const {
  for (const auto& record : records)
    if (record->belongs_to(optimizer)) return record.get();
  return nullptr;
}

GradientRecord& ScalerData::record_of(const torch::optim::Optimizer& optimizer) {
  if (GradientRecord* record = find_record(optimizer)) {
    if (!record->is_complete(optimizer)) record->add_parameters(optimizer);
    return *record;
  }
  // Another optimizer may have had this address, and others may have died with their parameters.
  std::erase_if(records,
                [&](const auto& record) { return record->optimizer == &optimizer || record->is_dead(); });
  return *records.emplace_back(std::make_shared<GradientRecord>(optimizer));
}

bool ScalerData::warns_at(int64_t skips) const {
  return options.warn_after_skips != 0 && skips % options.warn_after_skips == 0;
}

std::string ScalerData::nonfinite_gradients(const GradientRecord& record) const {
  return describe(find_nonfinite_gradients(record.named_parameters(options.parameter_name)));
}

void ScalerData::check(const torch::optim::Optimizer& optimizer, GradientRecord& record) const {
  const at::Tensor one = at::full({}, 1.0, scale.value.options());
  record.found_inf = check_and_unscale(optimizer, one, /*allow_fp16=*/true);
}

at::Tensor ScalerData::divisor(const StepSupportsAmpScaling& scaling, const GradientRecord& record) const {
  at::Tensor divisor = scale.value;
  // A grad_scale that the caller has set stays in force: the gradients carry both scales.
  if (scaling.grad_scale.defined()) divisor = divisor * scaling.grad_scale;
  if (record.clip_divisor.defined()) divisor = divisor * record.clip_divisor;
  return divisor;
}

at::Tensor ScalerData::sum_on_scale_device(const PerDevice& flags) const {
  at::Tensor sum;
  for (const auto& [device, flag] : flags) {
    const at::Tensor here = on_device(flag, scale.value.device());
    sum = sum.defined() ? sum + here : here;
  }
  return sum;
}

void ScalerData::move(const Scale& moved, const at::Tensor& found_inf) const {
  const at::Tensor before = moved.hysteresis_tracker.defined() ? moved.value.clone() : at::Tensor();
  at::Tensor value = moved.value, growth_tracker = moved.growth_tracker;
  at::_amp_update_scale_(value, growth_tracker, found_inf, options.growth_factor, options.backoff_factor,
                         options.growth_interval);
  if (before.defined()) apply_hysteresis(moved, before, found_inf);
  bound(moved.value);
}

// Everything stays on the device: asking whether there was an overflow would wait for it.
void ScalerData::apply_hysteresis(const Scale& moved, const at::Tensor& before,
                                  const at::Tensor& found_inf) const {
  const at::Tensor overflowed = found_inf != 0;
  const at::Tensor interval_met = (moved.growth_tracker == 0).logical_and(overflowed.logical_not());
  const at::Tensor left = (moved.hysteresis_tracker - overflowed.to(at::kInt)).clamp_min(0);
  moved.value.copy_(at::where(overflowed.logical_and(left > 0), before, moved.value));
  moved.hysteresis_tracker.copy_(left.masked_fill(interval_met, options.hysteresis_steps));
}

double ScalerData::bounded(double value) const {
  return std::clamp(value, options.min_scale, options.max_scale);
}

void ScalerData::bound(const at::Tensor& value) const { value.clamp_(options.min_scale, options.max_scale); }

void ScalerData::forget_iteration() {
  for (const auto& record : records) record->reset_iteration();
}

}  // namespace mantissa
