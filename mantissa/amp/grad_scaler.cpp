#include "mantissa/amp/grad_scaler.h"

#include <limits>
#include <memory>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
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

/// Lets an optimizer that unscales inside its step do so.
void step_self_unscaling(const ScalerData& data, torch::optim::Optimizer& optimizer,
                         StepSupportsAmpScaling& scaling, GradientRecord& record) {
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
              "unscale_(), so they are still scaled; call unscale_() after backward()");
  if (record.stage == GradientStage::kScaled) data.check(optimizer, record);
  if (record.stage != GradientStage::kUnscaled) scaling.grad_scale = data.divisor(scaling, record);
  const at::Tensor found_inf = data.sum_on_scale_device(record.found_inf);
  scaling.found_inf = found_inf.defined() ? found_inf : at::zeros({}, data.scale.value.options());
  optimizer.step();
}

/// Whether a gradient of any optimizer overflowed in this iteration; undefined if none was checked.
at::Tensor any_found_inf(const ScalerData& data) {
  PerDevice flags;
  for (const auto& record : data.records)
    flags.insert(flags.end(), record->found_inf.begin(), record->found_inf.end());
  return data.sum_on_scale_device(flags);
}

}  // namespace

GradScaler::GradScaler(at::Device device, const GradScalerOptions& options)
    : data_(std::make_unique<ScalerData>(device, options)) {}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  TORCH_CHECK_VALUE(!is_enabled() || outputs.defined(),
                    "GradScaler::scale: the tensor is undefined; pass the loss");
  return scale(std::vector<at::Tensor>{outputs}).front();
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  if (!is_enabled()) return outputs;
  return map_tensors(outputs, [&](const at::Tensor& output) {
    if (!data_->scale.value.defined()) data_->create_scale(output.device());
    return output * on_device(data_->scale.value, output.device());
  });
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  data_->check_usable("unscale_", optimizer);
  GradientRecord& record = data_->record_of(optimizer);
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
  const at::Tensor inv_scale = data_->scale.value.reciprocal();
  record.found_inf = check_and_unscale(optimizer, inv_scale, data_->options.allow_fp16_gradients);
  record.stage = GradientStage::kUnscaled;
  // The flag of an optimizer that divides in its step is not read unless note_step() reports its skips.
  const int64_t skips = record.skips_in_a_row;
  if (skips == 0 && as_self_unscaling(optimizer)) return;
  if (data_->warns_at(skips + 1) && has_overflowed(record.found_inf))
    record.nonfinite = data_->nonfinite_gradients(record);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return true;
  }
  data_->check_usable("step", optimizer);
  GradientRecord& record = data_->record_of(optimizer);
  TORCH_CHECK(
      record.stage != GradientStage::kStepped,
      "GradScaler::step: step() has already been called since the last update(); call update() once at the "
      "end of every iteration");
  check_not_mixed("GradScaler::step", record);
  auto* scaling = as_self_unscaling(optimizer);
  bool overflowed = false;
  if (scaling != nullptr) {
    step_self_unscaling(*data_, optimizer, *scaling, record);
  } else {
    if (record.stage == GradientStage::kScaled) unscale_(optimizer);
    TORCH_CHECK(
        !record.found_inf.empty(),
        "GradScaler::step: No inf checks were recorded for this optimizer: none of its parameters has a "
        "gradient; call backward() on the scaled loss first, and do not step optimizers that took no part");
    overflowed = has_overflowed(record.found_inf);
    if (!overflowed) optimizer.step();
  }
  record.stage = GradientStage::kStepped;
  record.stepped = record.gradients();
  record.may_accumulate = false;
  record.is_step_known = scaling == nullptr;
  record.step_found_inf = scaling != nullptr ? data_->sum_on_scale_device(record.found_inf)
                                             : at::full({}, static_cast<double>(overflowed), at::kFloat);
  if (scaling == nullptr) note_step(optimizer, !overflowed);
  return !overflowed;
}

StepResult GradScaler::last_step(const torch::optim::Optimizer& optimizer) const {
  for (const auto& record : data_->records) {
    if (!record->belongs_to(optimizer) || !record->step_found_inf.defined()) continue;
    const auto first_nonfinite = [weak = std::weak_ptr(record), name = data_->options.parameter_name] {
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
  GradientRecord& record = data_->record_of(optimizer);
  if (stepped) {
    record.skips_in_a_row = 0;
    return;
  }
  const int64_t skips = ++record.skips_in_a_row;
  if (!data_->warns_at(skips)) return;
  TORCH_WARN("GradScaler::step: ", skips,
             " overflows in a row, whose steps were skipped or retried; the scale is ", get_scale(),
             ", and these gradients have inf or nan: ",
             record.nonfinite.empty() ? data_->nonfinite_gradients(record) : record.nonfinite,
             ". If the loss itself is inf or nan no scale helps: look at the data and the learning rate, or "
             "use bf16; if the scale is still high, ",
             is_scale_fixed() ? "lower the fixed scale" : "start from a lower init_scale",
             ". trace_nonfinite() (docs/nonfinite.md) names the operation where it began");
}

void GradScaler::set_parameter_name(std::function<std::string(const at::Tensor&)> name) {
  if (!data_->options.parameter_name) data_->options.parameter_name = std::move(name);
}

at::Tensor GradScaler::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  TORCH_CHECK(
      !is_enabled(),
      "GradScaler::step: closure use is not currently supported if GradScaler is enabled; run the closure's "
      "forward and backward pass before step(optimizer), or use bf16, which needs no scaler");
  return optimizer.step(closure);
}

void GradScaler::update() {
  if (!is_enabled()) return;
  data_->check_initialized("update");
  const at::Tensor found_inf = any_found_inf(*data_);
  TORCH_CHECK(found_inf.defined(),
              "GradScaler::update: No inf checks were recorded prior to update; call step(optimizer) after "
              "scale(loss).backward(), then update() once");
  data_->move(data_->scale, found_inf);
  data_->forget_iteration();
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  data_->check_initialized("update");
  TORCH_CHECK_VALUE(new_scale >= 0 && new_scale <= std::numeric_limits<float>::max(),
                    "GradScaler::update: new_scale must be at least 0 and finite in float32; got ", new_scale,
                    " (the default scale is 65536)");
  data_->scale.value.fill_(data_->bounded(new_scale));
  data_->forget_iteration();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) return;
  data_->check_initialized("update");
  TORCH_CHECK_VALUE(new_scale.defined() && new_scale.device().type() == data_->device.type() &&
                        new_scale.numel() == 1 && !new_scale.requires_grad(),
                    "GradScaler::update: new_scale should be a 1-element tensor on ", data_->device,
                    " with requires_grad=False; got ", new_scale.toString(), " of shape ",
                    new_scale.defined() ? new_scale.sizes() : at::IntArrayRef(), "; or pass a number");
  data_->scale.value.copy_(new_scale.reshape({}));
  data_->bound(data_->scale.value);
  data_->forget_iteration();
}

void GradScaler::forget(const torch::optim::Optimizer& optimizer) {
  if (GradientRecord* record = data_->find_record(optimizer)) record->reset_iteration();
}

at::Tensor GradScaler::found_inf(const torch::optim::Optimizer& optimizer) const {
  const GradientRecord* record = data_->find_record(optimizer);
  return record ? data_->sum_on_scale_device(record->found_inf) : at::Tensor();
}

bool GradScaler::is_enabled() const { return data_->options.enabled; }
bool GradScaler::is_scale_fixed() const { return data_->is_scale_fixed(); }
double GradScaler::get_growth_factor() const { return data_->options.growth_factor; }
double GradScaler::get_backoff_factor() const { return data_->options.backoff_factor; }
int64_t GradScaler::get_growth_interval() const { return data_->options.growth_interval; }
void GradScaler::set_growth_factor(double factor) { data_->options.growth_factor = factor; }
void GradScaler::set_backoff_factor(double factor) { data_->options.backoff_factor = factor; }
void GradScaler::set_growth_interval(int64_t interval) { data_->options.growth_interval = interval; }

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return data_->scale.value.defined() ? data_->scale.value.item<float>() : data_->options.init_scale;
}

at::Tensor GradScaler::scale_on_device() const {
  const double known = is_enabled() ? data_->options.init_scale : 1.0;
  return data_->scale.value.defined() ? data_->scale.value.clone() : at::full({}, known, at::kFloat);
}

int64_t GradScaler::get_growth_tracker() const {
  if (!is_enabled()) return 0;
  return data_->scale.growth_tracker.defined() ? data_->scale.growth_tracker.item<int>()
                                               : data_->init_growth_tracker;
}

}  // namespace mantissa
