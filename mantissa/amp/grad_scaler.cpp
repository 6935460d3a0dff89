#include "mantissa/amp/grad_scaler.h"

#include <cmath>
#include <limits>
#include <unordered_set>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/device.h"
#include "mantissa/core/step_scaling.h"
#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

constexpr double kMaxScale = std::numeric_limits<float>::max();

at::Tensor on_device(const at::Tensor& value, at::Device device) {
  return value.to(device, /*non_blocking=*/true);
}

/// Of one kind: what _amp_foreach_non_finite_check_and_unscale_ takes at once.
struct GradientGroup {
  at::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

/// Looks at every gradient before any is touched, so that a refused optimizer is left as it was.
void check_gradients(const torch::optim::Optimizer& optimizer, bool allow_fp16) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      TORCH_CHECK_VALUE(
          allow_fp16 || gradient.scalar_type() != at::kHalf,
          "GradScaler::unscale_: Attempting to unscale FP16 gradients, which overflow in fp16 itself; "
          "keep the parameters in float32 and run the forward pass under Autocast, or use bf16");
      TORCH_CHECK_NOT_IMPLEMENTED(
          !gradient.is_complex(), "GradScaler::unscale_: not implemented for ", gradient.scalar_type(),
          " gradients; keep complex parameters in an optimizer of their own without the scaler");
    }
  }
}

std::vector<GradientGroup> gradient_groups(const torch::optim::Optimizer& optimizer) {
  std::vector<GradientGroup> groups;
  std::unordered_set<const at::TensorImpl*> seen;  // libtorch lists a weight that two modules share twice
  for (const auto& param_group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : param_group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      // Duplicate indices are summed when the optimizer coalesces; fp16 is the dtype where that sum
      // overflows.
      if (gradient.is_sparse() && gradient.scalar_type() == at::kHalf) gradient = gradient.coalesce();
      const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
      auto group = groups.begin();
      while (group != groups.end() &&
             !(group->device == values.device() && group->dtype == values.scalar_type())) {
        ++group;
      }
      if (group == groups.end()) group = groups.insert(group, {values.device(), values.scalar_type(), {}});
      group->gradients.push_back(values);
    }
  }
  return groups;
}

double read_number(const GradScalerState& state, const std::string& key) {
  const at::Scalar& value = state.at(key);
  TORCH_CHECK_VALUE(value.isFloatingPoint() || value.isIntegral(/*includeBool=*/false),
                    "GradScaler::load_state_dict: '", key, "' must be a number; got ", value);
  const double number = value.to<double>();
  TORCH_CHECK_VALUE(std::isfinite(number), "GradScaler::load_state_dict: '", key, "' must be finite; got ",
                    number);
  return number;
}

int64_t read_integer(const GradScalerState& state, const std::string& key, int64_t min, int64_t max) {
  const double number = read_number(state, key);
  // Written so that a JSON reader which knows only floating-point numbers is understood.
  TORCH_CHECK_VALUE(number == std::floor(number) && number >= static_cast<double>(min) &&
                        number <= static_cast<double>(max),
                    "GradScaler::load_state_dict: '", key, "' must be an integer from ", min, " to ", max,
                    "; got ", number);
  return static_cast<int64_t>(number);
}

}  // namespace

GradScaler::GradScaler(at::Device device, const GradScalerOptions& options)
    : device_(device), options_(options) {
  if (options_.enabled && device_.is_cuda() && cuda_device_count() == 0) {
    TORCH_WARN_ONCE("GradScaler(cuda): CUDA is not available, so gradient scaling is disabled (",
                    why_no_cuda(), "). Pass enabled = false or the CPU to say that this is meant.");
    options_.enabled = false;
  }
  if (!options_.enabled) return;
  TORCH_CHECK_VALUE(options_.growth_factor > 1.0, "GradScaler: the growth factor must be > 1.0; got ",
                    options_.growth_factor, " (to keep the scale fixed, use a huge growth_interval)");
  TORCH_CHECK_VALUE(options_.backoff_factor < 1.0, "GradScaler: the backoff factor must be < 1.0; got ",
                    options_.backoff_factor, " (the default is 0.5)");
  TORCH_CHECK_VALUE(options_.init_scale > 0 && options_.init_scale <= kMaxScale,
                    "GradScaler: init_scale must be positive and fit in float32; got ", options_.init_scale,
                    " (the default is 65536)");
  TORCH_CHECK_VALUE(options_.growth_interval > 0, "GradScaler: growth_interval must be at least 1; got ",
                    options_.growth_interval, " (the default is 2000)");
}

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
  if (!scale_.defined()) {
    // Autograd keeps the scale for the backward pass, which it cannot for a tensor made in inference mode.
    const c10::InferenceMode no_inference(false);
    scale_ = at::full({}, options_.init_scale, at::TensorOptions(output.device()).dtype(at::kFloat));
    growth_tracker_ = at::full({}, init_growth_tracker_, scale_.options().dtype(at::kInt));
  }
  for (const auto& [device, scale] : scales) {
    if (device == output.device()) return output * scale;
  }
  return output * scales.emplace_back(output.device(), on_device(scale_, output.device())).second;
}

void GradScaler::check_initialized(const char* function) const {
  TORCH_CHECK(
      scale_.defined(), "GradScaler::", function, ": attempted ", function,
      " before the scale exists; this may indicate that scaler.scale(loss) was not used earlier in the "
      "iteration: call scaler.scale(loss).backward()");
}

GradScaler::OptimizerState& GradScaler::state_of(const torch::optim::Optimizer& optimizer) {
  for (auto& state : optimizers_) {
    if (state.optimizer == &optimizer) return state;
  }
  return optimizers_.emplace_back(OptimizerState{&optimizer, Stage::kReady, {}});
}

GradScaler::PerDevice GradScaler::check_and_unscale(torch::optim::Optimizer& optimizer,
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
  check_initialized("unscale_");
  auto& state = state_of(optimizer);
  TORCH_CHECK(
      state.stage != Stage::kUnscaled,
      "GradScaler::unscale_: unscale_() has already been called on this optimizer since the last update(); "
      "call it once an iteration, and update() at its end");
  TORCH_CHECK(
      state.stage != Stage::kStepped,
      "GradScaler::unscale_: unscale_() is being called after step(); call it before step(), and update() at "
      "the end of the iteration");
  // Metal has no float64.
  const at::Tensor inv_scale =
      scale_.is_mps() ? scale_.reciprocal() : scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  state.found_inf = check_and_unscale(optimizer, inv_scale, /*allow_fp16=*/false);
  state.stage = Stage::kUnscaled;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return true;
  }
  check_initialized("step");
  auto& state = state_of(optimizer);
  TORCH_CHECK(
      state.stage != Stage::kStepped,
      "GradScaler::step: step() has already been called since the last update(); call update() once at the "
      "end of every iteration");
  if (dynamic_cast<StepSupportsAmpScaling*>(&optimizer) != nullptr) {
    step_self_unscaling(optimizer, state);
    state.stage = Stage::kStepped;
    return true;
  }
  if (state.stage == Stage::kReady) unscale_(optimizer);
  TORCH_CHECK(
      !state.found_inf.empty(),
      "GradScaler::step: No inf checks were recorded for this optimizer: none of its parameters has a "
      "gradient; call backward() on the scaled loss first, and do not step optimizers that took no part");
  bool overflowed = false;
  for (const auto& [device, flag] : state.found_inf) overflowed = overflowed || flag.item<float>() != 0;
  if (!overflowed) optimizer.step();
  state.stage = Stage::kStepped;
  return !overflowed;
}

void GradScaler::step_self_unscaling(torch::optim::Optimizer& optimizer, OptimizerState& state) {
  auto& scaling = dynamic_cast<StepSupportsAmpScaling&>(optimizer);
  const struct Clear {
    StepSupportsAmpScaling& scaling;
    ~Clear() {
      scaling.grad_scale.reset();
      scaling.found_inf.reset();
    }
  } clear{
      scaling};  // also when the optimizer throws: a stale scale would divide the next step's gradients again
  if (state.stage == Stage::kReady) {
    const at::Tensor one = at::full({}, 1.0, scale_.options());
    state.found_inf = check_and_unscale(optimizer, one, /*allow_fp16=*/true);
    // A scale that the caller has set stays in force: the gradients carry both.
    scaling.grad_scale = scaling.grad_scale.defined() ? scale_ * scaling.grad_scale : scale_;
  }
  const at::Tensor found_inf = sum_on_scale_device(state.found_inf);
  scaling.found_inf = found_inf.defined() ? found_inf : at::zeros({}, scale_.options());
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
    const at::Tensor here = on_device(flag, scale_.device());
    sum = sum.defined() ? sum + here : here;
  }
  return sum;
}

void GradScaler::update() {
  if (!is_enabled()) return;
  check_initialized("update");
  PerDevice flags;
  for (const auto& state : optimizers_)
    flags.insert(flags.end(), state.found_inf.begin(), state.found_inf.end());
  TORCH_CHECK(!flags.empty(),
              "GradScaler::update: No inf checks were recorded prior to update; call step(optimizer) after "
              "scale(loss).backward(), then update() once");
  at::_amp_update_scale_(scale_, growth_tracker_, sum_on_scale_device(flags), options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  optimizers_.clear();
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  check_initialized("update");
  TORCH_CHECK_VALUE(std::abs(new_scale) <= kMaxScale,
                    "GradScaler::update: new_scale must be finite in float32; got ", new_scale);
  scale_.fill_(new_scale);
  optimizers_.clear();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) return;
  check_initialized("update");
  TORCH_CHECK_VALUE(new_scale.defined() && new_scale.device().type() == device_.type() &&
                        new_scale.numel() == 1 && !new_scale.requires_grad(),
                    "GradScaler::update: new_scale should be a 1-element tensor on ", device_,
                    " with requires_grad=False; got ", new_scale.toString(), " of shape ",
                    new_scale.defined() ? new_scale.sizes() : at::IntArrayRef(), "; or pass a number");
  scale_.copy_(new_scale.reshape({}));
  optimizers_.clear();
}

void GradScaler::forget(const torch::optim::Optimizer& optimizer) {
  std::erase_if(optimizers_, [&](const OptimizerState& state) { return state.optimizer == &optimizer; });
}

at::Tensor GradScaler::found_inf(const torch::optim::Optimizer& optimizer) const {
  for (const auto& state : optimizers_) {
    if (state.optimizer == &optimizer) return sum_on_scale_device(state.found_inf);
  }
  return {};
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return scale_.defined() ? scale_.item<float>() : options_.init_scale;
}

int64_t GradScaler::get_growth_tracker() const {
  if (!is_enabled()) return 0;
  return growth_tracker_.defined() ? growth_tracker_.item<int>() : init_growth_tracker_;
}

GradScalerState GradScaler::state_dict() const {
  if (!is_enabled()) return {};
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", get_growth_tracker()}};
}

void GradScaler::load_state_dict(const GradScalerState& state) {
  if (!is_enabled()) return;
  TORCH_CHECK(
      !state.empty(),
      "GradScaler::load_state_dict: the source state dict is empty, possibly because it was saved from a "
      "disabled instance of GradScaler; do not load it, and the scaler starts from its options");
  std::vector<std::string> present;
  for (const auto& [key, value] : state) present.push_back(key);
  for (const char* key : {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    TORCH_CHECK_VALUE(state.count(key) != 0, "GradScaler::load_state_dict: '", key, "' is missing; got ",
                      join_names(present), did_you_mean(key, present),
                      "; a state comes from state_dict(), here or in Python's torch.amp.GradScaler");
  }
  GradScalerOptions loaded = options_;
  loaded.init_scale = read_number(state, "scale");
  TORCH_CHECK_VALUE(std::abs(loaded.init_scale) <= kMaxScale,
                    "GradScaler::load_state_dict: 'scale' must fit in float32; got ", loaded.init_scale);
  loaded.growth_factor = read_number(state, "growth_factor");
  loaded.backoff_factor = read_number(state, "backoff_factor");
  constexpr int64_t kMaxExact = int64_t{1} << 53;
  loaded.growth_interval = read_integer(state, "growth_interval", -kMaxExact, kMaxExact);
  const int64_t tracker = read_integer(state, "_growth_tracker", 0, std::numeric_limits<int>::max());

  options_ = loaded;
  init_growth_tracker_ = tracker;
  if (!scale_.defined()) return;
  scale_.fill_(loaded.init_scale);
  growth_tracker_.fill_(tracker);
}

}  // namespace mantissa
