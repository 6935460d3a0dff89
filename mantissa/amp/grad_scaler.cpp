#include "mantissa/amp/grad_scaler.h"

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
      if (!gradient.defined()) continue;
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

void GradScaler::check_factors(const char* function, const GradScalerOptions& options) {
  TORCH_CHECK_VALUE(options.growth_factor > 1.0 && std::isfinite(options.growth_factor), function,
                    ": the growth factor must be > 1.0 and finite; got ", options.growth_factor,
                    " (to keep the scale fixed, use a huge growth_interval)");
  TORCH_CHECK_VALUE(options.backoff_factor >= 0 && options.backoff_factor < 1.0, function,
                    ": the backoff factor must be < 1.0 and at least 0; got ", options.backoff_factor,
                    " (the default is 0.5)");
}

GradScaler::GradScaler(at::Device device, const GradScalerOptions& options)
    : device_(device), options_(options) {
  if (options_.enabled && device_.is_cuda() && cuda_device_count() == 0) {
    TORCH_WARN_ONCE("GradScaler(cuda): CUDA is not available, so gradient scaling is disabled (",
                    why_no_cuda(), "). Pass enabled = false or the CPU to say that this is meant.");
    options_.enabled = false;
  }
  if (!options_.enabled) return;
  check_factors("GradScaler", options_);
  TORCH_CHECK_VALUE(options_.init_scale > 0 && options_.init_scale <= kMaxScale,
                    "GradScaler: init_scale must be positive and fit in float32; got ", options_.init_scale,
                    " (the default is 65536)");
  TORCH_CHECK_VALUE(options_.min_scale >= 0 && options_.min_scale <= options_.init_scale,
                    "GradScaler: min_scale must be from 0 to init_scale, ", options_.init_scale, "; got ",
                    options_.min_scale, " (0 is no floor)");
  TORCH_CHECK_VALUE(options_.max_scale >= options_.init_scale && options_.max_scale <= kMaxScale,
                    "GradScaler: max_scale must be from init_scale, ", options_.init_scale,
                    ", to float32's largest value; got ", options_.max_scale,
                    " (leave it out for no ceiling)");
  TORCH_CHECK_VALUE(options_.hysteresis_steps > 0 && options_.hysteresis_steps <= kMaxCount,
                    "GradScaler: hysteresis_steps must be at least 1 and fit in int32; got ",
                    options_.hysteresis_steps, " (1 backs off at every overflow)");
  TORCH_CHECK_VALUE(options_.warn_after_skips >= 0, "GradScaler: warn_after_skips must be at least 0; got ",
                    options_.warn_after_skips, " (0 never warns)");
  TORCH_CHECK_VALUE(options_.growth_interval > 0, "GradScaler: growth_interval must be at least 1; got ",
                    options_.growth_interval, " (the default is 2000)");
  init_hysteresis_tracker_ = options_.hysteresis_steps;
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!is_enabled()) return outputs;
  TORCH_CHECK_VALUE(outputs.defined(), "GradScaler::scale: the tensor is undefined; pass the loss");
  PerDevice scales;
  return scale_leaf(outputs, scales);
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  return scale<std::vector<at::Tensor>>(outputs);
}

at::Tensor GradScaler::scale_leaf(const at::Tensor& output, PerDevice& scales) {
  if (!scale_.value.defined()) create_state(output.device());
  for (const auto& [device, scale] : scales) {
    if (device == output.device()) return output * scale;
  }
  return output * scales.emplace_back(output.device(), on_device(scale_.value, output.device())).second;
}

void GradScaler::create_state(at::Device device) {
  // Autograd saves the scale for the backward pass; it cannot save a tensor made in inference mode.
  const c10::InferenceMode no_inference(false);
  scale_.value = at::full({}, options_.init_scale, at::TensorOptions(device).dtype(at::kFloat));
  scale_.growth_tracker = at::full({}, init_growth_tracker_, scale_.value.options().dtype(at::kInt));
  if (options_.hysteresis_steps > 1)
    scale_.hysteresis_tracker = at::full({}, init_hysteresis_tracker_, scale_.growth_tracker.options());
}

void GradScaler::check_usable(const char* function, const torch::optim::Optimizer& optimizer) const {
  TORCH_CHECK_TYPE(
      !has_line_search(optimizer), "GradScaler::", function,
      ": LBFGS evaluates its loss several times a step, which a gradient scaler cannot follow; use "
      "bf16, float32 or another optimizer");
  check_initialized(function);
}

void GradScaler::check_initialized(const char* function) const {
  TORCH_CHECK(
      scale_.value.defined(), "GradScaler::", function, ": attempted ", function,
      " before the scale exists; this may indicate that scaler.scale(loss) was not used earlier in the "
      "iteration: call scaler.scale(loss).backward()");
}

GradientRecord* GradScaler::find_record(const torch::optim::Optimizer& optimizer) const {
  for (const auto& record : records_)
    if (record->belongs_to(optimizer)) return record.get();
  return nullptr;
}

GradientRecord& GradScaler::record_of(const torch::optim::Optimizer& optimizer) {
  if (GradientRecord* record = find_record(optimizer)) {
    // Groups may have been added between watch() and the first step.
    if (record->is_complete(optimizer) || record->has_history()) return *record;
  }
  // Another optimizer may have had this address, and others may have died with their parameters.
  std::erase_if(records_,
                [&](const auto& record) { return record->optimizer == &optimizer || record->is_dead(); });
  return *records_.emplace_back(std::make_shared<GradientRecord>(optimizer));
}

GradScaler::PerDevice GradScaler::check_and_unscale(const torch::optim::Optimizer& optimizer,
                                                    const at::Tensor& inv_scale, bool allow_fp16) {
  const at::NoGradGuard no_grad;
  check_gradients(optimizer, allow_fp16);
  PerDevice found_inf;
  PerDevice inv_scales;
  for (const auto& group : gradient_groups(optimizer)) {
    size_t i = 0;
    while (i < found_inf.size() && found_inf[i].first != group.device) ++i;
    if (i == found_inf.size()) {
      found_inf.emplace_back(group.device, at::zeros({}, inv_scale.options().device(group.device)));
      inv_scales.emplace_back(group.device, on_device(inv_scale, group.device));
    }
    at::_amp_foreach_non_finite_check_and_unscale_(group.gradients, found_inf[i].second,
                                                   inv_scales[i].second);
  }
  return found_inf;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  check_usable("unscale_", optimizer);
  GradientRecord& record = record_of(optimizer);
  TORCH_CHECK(
      record.stage != GradientStage::kUnscaled,
      "GradScaler::unscale_: unscale_() has already been called on this optimizer since the last update(); "
      "call it once an iteration, and update() at its end");
  TORCH_CHECK(
      record.stage != GradientStage::kStepped,
      "GradScaler::unscale_: unscale_() is being called after step(); call it before step(), and update() at "
      "the end of the iteration");
  TORCH_CHECK(
      record.stage != GradientStage::kChecked,
      "GradScaler::unscale_: unscale_() is being called after the scaler clipped fp16 gradients, which stay "
      "scaled until the optimizer's step; call it before clipping, or not at all");
  // Equals torch's float32(1 / float64(scale)) with fewer operations: a quotient of two float32 numbers is
  // the same if it is rounded to float64 first (53 >= 2 * 24 + 2 bits).
  const at::Tensor inv_scale = scale_.value.reciprocal();
  record.found_inf = check_and_unscale(optimizer, inv_scale, options_.allow_fp16_gradients);
  record.stage = GradientStage::kUnscaled;
  // The flag of an optimizer that divides in its step is not read unless note_step() reports its skips.
  const int64_t skips = record.skips_in_a_row;
  if (skips == 0 && as_self_unscaling(optimizer)) return;
  if (warns_at(skips + 1) && has_overflowed(record)) record.nonfinite = nonfinite_gradients(record);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return true;
  }
  check_usable("step", optimizer);
  GradientRecord& record = record_of(optimizer);
  TORCH_CHECK(
      record.stage != GradientStage::kStepped,
      "GradScaler::step: step() has already been called since the last update(); call update() once at the "
      "end of every iteration");
  check_not_mixed("step", record);
  auto* scaling = as_self_unscaling(optimizer);
  bool overflowed = false;
  if (scaling != nullptr) {
    step_self_unscaling(optimizer, *scaling, record);
  } else {
    if (record.stage == GradientStage::kScaled) unscale_(optimizer);
    TORCH_CHECK(
        !record.found_inf.empty(),
        "GradScaler::step: No inf checks were recorded for this optimizer: none of its parameters has a "
        "gradient; call backward() on the scaled loss first, and do not step optimizers that took no part");
    overflowed = has_overflowed(record);
    if (!overflowed) optimizer.step();
  }
  record.stage = GradientStage::kStepped;
  record.stepped = record.gradients();
  record.may_accumulate = false;
  record.is_step_known = scaling == nullptr;
  record.step_found_inf = scaling != nullptr ? sum_on_scale_device(record.found_inf)
                                             : at::full({}, overflowed ? 1.0 : 0.0, at::kFloat);
  if (scaling == nullptr) note_step(optimizer, !overflowed);
  return !overflowed;
}

bool GradScaler::has_overflowed(const GradientRecord& record) {
  return std::any_of(record.found_inf.begin(), record.found_inf.end(),
                     [](const auto& flag) { return flag.second.template item<float>() != 0; });
}

bool GradScaler::warns_at(int64_t skips) const {
  return options_.warn_after_skips != 0 && skips % options_.warn_after_skips == 0;
}

std::string GradScaler::nonfinite_gradients(const GradientRecord& record) const {
  return describe(find_nonfinite_gradients(record.named_parameters(options_.parameter_name)));
}

StepResult GradScaler::last_step(const torch::optim::Optimizer& optimizer) const {
  for (const auto& record : records_) {
    if (!record->belongs_to(optimizer) || !record->step_found_inf.defined()) continue;
    const auto first_nonfinite = [weak = std::weak_ptr(record), name = options_.parameter_name] {
      const auto alive = weak.lock();
      // Gradients of a later backward pass say nothing about that step.
      if (!alive || !alive->has_gradients(alive->stepped)) return std::string();
      for (const auto& named : alive->named_parameters(name))
        if (!find_nonfinite_gradients({named}).empty()) return named.first;
      return std::string();
    };
    return {record->step_found_inf, first_nonfinite};
  }
  return {};
}

void GradScaler::note_step(const torch::optim::Optimizer& optimizer, bool stepped) {
  GradientRecord& record = record_of(optimizer);
  if (stepped) {
    record.skips_in_a_row = 0;
    return;
  }
  const int64_t skips = ++record.skips_in_a_row;
  if (!warns_at(skips)) return;
  const bool fixed = options_.min_scale == options_.max_scale;
  TORCH_WARN("GradScaler::step: ", skips, " steps in a row were skipped; the scale is ", get_scale(),
             ", and these gradients have inf or nan: ",
             record.nonfinite.empty() ? nonfinite_gradients(record) : record.nonfinite,
             ". If the loss itself is inf or nan no scale helps: look at the data and the learning rate, or "
             "use bf16; if the scale is still high, ",
             fixed ? "lower the fixed scale" : "start from a lower init_scale",
             ". trace_nonfinite() (docs/nonfinite.md) names the operation where it began");
}

void GradScaler::set_parameter_name(std::function<std::string(const at::Tensor&)> name) {
  if (!options_.parameter_name) options_.parameter_name = std::move(name);
}

void GradScaler::check(const torch::optim::Optimizer& optimizer, GradientRecord& record) {
  const at::Tensor one = at::full({}, 1.0, scale_.value.options());
  record.found_inf = check_and_unscale(optimizer, one, /*allow_fp16=*/true);
}

at::Tensor GradScaler::divisor(const StepSupportsAmpScaling& scaling, const GradientRecord& record) const {
  at::Tensor divisor = scale_.value;
  // A grad_scale that the caller has set stays in force: the gradients carry both scales.
  if (scaling.grad_scale.defined()) divisor = divisor * scaling.grad_scale;
  if (record.clip_divisor.defined()) divisor = divisor * record.clip_divisor;
  return divisor;
}

void GradScaler::step_self_unscaling(torch::optim::Optimizer& optimizer, StepSupportsAmpScaling& scaling,
                                     GradientRecord& record) {
  struct Clear {
    StepSupportsAmpScaling& scaling;
    ~Clear() {
      scaling.grad_scale.reset();
      scaling.found_inf.reset();
    }
  };
  // Clears also when the optimizer throws: a stale scale would divide the next step's gradients again.
  const Clear clear{scaling};
  TORCH_CHECK(record.stage != GradientStage::kUnscaled || !record.found_inf.empty() ||
                  gradient_groups(optimizer).empty(),
              "GradScaler::step: No inf checks were recorded for this optimizer: its gradients came after "
              "unscale_(), "
              "so they are still scaled; call unscale_() after backward()");
  if (record.stage == GradientStage::kScaled) check(optimizer, record);
  if (record.stage != GradientStage::kUnscaled) scaling.grad_scale = divisor(scaling, record);
  const at::Tensor found_inf = sum_on_scale_device(record.found_inf);
  scaling.found_inf = found_inf.defined() ? found_inf : at::zeros({}, scale_.value.options());
  optimizer.step();
}

at::Tensor GradScaler::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  TORCH_CHECK(
      !is_enabled(),
      "GradScaler::step: closure use is not currently supported if GradScaler is enabled; run the closure's "
      "forward and backward pass before step(optimizer), or use bf16, which needs no scaler");
  return optimizer.step(closure);
}

at::Tensor GradScaler::sum_on_scale_device(const PerDevice& flags) const {
  at::Tensor sum;
  for (const auto& [device, flag] : flags) {
    const at::Tensor here = on_device(flag, scale_.value.device());
    sum = sum.defined() ? sum + here : here;
  }
  return sum;
}

at::Tensor GradScaler::any_found_inf() const {
  PerDevice flags;
  for (const auto& record : records_)
    flags.insert(flags.end(), record->found_inf.begin(), record->found_inf.end());
  return sum_on_scale_device(flags);
}

void GradScaler::update() {
  if (!is_enabled()) return;
  check_initialized("update");
  const at::Tensor found_inf = any_found_inf();
  TORCH_CHECK(found_inf.defined(),
              "GradScaler::update: No inf checks were recorded prior to update; call step(optimizer) after "
              "scale(loss).backward(), then update() once");
  move(scale_, found_inf);
  abandon_iteration();
}

void GradScaler::move(const Scale& scale, const at::Tensor& found_inf) const {
  const at::Tensor before = scale.hysteresis_tracker.defined() ? scale.value.clone() : at::Tensor();
  at::Tensor value = scale.value, growth_tracker = scale.growth_tracker;
  at::_amp_update_scale_(value, growth_tracker, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  if (before.defined()) apply_hysteresis(scale, before, found_inf);
  bound(scale.value);
}

// Everything stays on the device: asking whether there was an overflow would wait for it.
void GradScaler::apply_hysteresis(const Scale& scale, const at::Tensor& before,
                                  const at::Tensor& found_inf) const {
  const at::Tensor overflowed = found_inf != 0;
  const at::Tensor interval_met = (scale.growth_tracker == 0).logical_and(overflowed.logical_not());
  const at::Tensor left = (scale.hysteresis_tracker - overflowed.to(at::kInt)).clamp_min(0);
  scale.value.copy_(at::where(overflowed.logical_and(left > 0), before, scale.value));
  scale.hysteresis_tracker.copy_(left.masked_fill(interval_met, options_.hysteresis_steps));
}

double GradScaler::bounded(double scale) const {
  if (options_.min_scale > 0) scale = std::max(scale, options_.min_scale);
  return std::min(scale, options_.max_scale);
}

void GradScaler::bound(const at::Tensor& scale) const {
  if (options_.min_scale > 0)
    scale.clamp_(options_.min_scale, options_.max_scale);
  else
    scale.clamp_max_(options_.max_scale);
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  check_initialized("update");
  TORCH_CHECK_VALUE(new_scale >= 0 && new_scale <= kMaxScale,
                    "GradScaler::update: new_scale must be at least 0 and finite in float32; got ", new_scale,
                    " (the default scale is 65536)");
  scale_.value.fill_(bounded(new_scale));
  abandon_iteration();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) return;
  check_initialized("update");
  TORCH_CHECK_VALUE(new_scale.defined() && new_scale.device().type() == device_.type() &&
                        new_scale.numel() == 1 && !new_scale.requires_grad(),
                    "GradScaler::update: new_scale should be a 1-element tensor on ", device_,
                    " with requires_grad=False; got ", new_scale.toString(), " of shape ",
                    new_scale.defined() ? new_scale.sizes() : at::IntArrayRef(), "; or pass a number");
  scale_.value.copy_(new_scale.reshape({}));
  bound(scale_.value);
  abandon_iteration();
}

void GradScaler::forget(const torch::optim::Optimizer& optimizer) {
  if (GradientRecord* record = find_record(optimizer)) record->reset_iteration();
}

at::Tensor GradScaler::found_inf(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = find_record(optimizer);
  return record ? sum_on_scale_device(record->found_inf) : at::Tensor();
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return scale_.value.defined() ? scale_.value.item<float>() : options_.init_scale;
}

at::Tensor GradScaler::scale_on_device() const {
  const double known = is_enabled() ? options_.init_scale : 1.0;
  return scale_.value.defined() ? scale_.value.clone() : at::full({}, known, at::kFloat);
}

int64_t GradScaler::get_growth_tracker() const {
  if (!is_enabled()) return 0;
  return scale_.growth_tracker.defined() ? scale_.growth_tracker.item<int>() : init_growth_tracker_;
}

}  // namespace mantissa
