#include "mantissa/amp/grad_scaler_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/scalar_tensor.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/scaler_data_internal.h"
#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

constexpr const char* kHysteresisTracker = "_hysteresis_tracker";

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
  // A whole number in floating point is accepted too: some JSON readers know only floating-point numbers.
  TORCH_CHECK_VALUE(number == std::floor(number) && number >= static_cast<double>(min) &&
                        number <= static_cast<double>(max),
                    "GradScaler::load_state_dict: '", key, "' must be an integer from ", min, " to ", max,
                    "; got ", number);
  return static_cast<int64_t>(number);
}

}  // namespace

GradScalerState ScalerData::state_dict_of(const Scale& of) const {
  const bool exists = of.value.defined();
  GradScalerState state = {{"scale", exists ? of.value.item<float>() : options.init_scale},
                           {"growth_factor", options.growth_factor},
                           {"backoff_factor", options.backoff_factor},
                           {"growth_interval", options.growth_interval},
                           {"_growth_tracker", exists ? of.growth_tracker.item<int>() : init_growth_tracker}};
  if (options.hysteresis_steps > 1) {
    state[kHysteresisTracker] = of.hysteresis_tracker.defined()
                                    ? static_cast<int64_t>(of.hysteresis_tracker.item<int>())
                                    : init_hysteresis_tracker;
  }
  return state;
}

GradScalerState GradScaler::state_dict() const {
  return is_enabled() ? data_->state_dict_of(data_->scale) : GradScalerState();
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
  GradScalerOptions loaded = data_->options;
  loaded.init_scale = read_number(state, "scale");
  TORCH_CHECK_VALUE(loaded.init_scale > 0 || (loaded.init_scale == 0 && data_->options.min_scale == 0),
                    "GradScaler::load_state_dict: 'scale' must be positive; got ", loaded.init_scale,
                    " (where torch's scaler has underflowed to 0, continue without its state)");
  TORCH_CHECK_VALUE(loaded.init_scale <= std::numeric_limits<float>::max(),
                    "GradScaler::load_state_dict: 'scale' must fit in float32; got ", loaded.init_scale);
  loaded.init_scale = data_->bounded(loaded.init_scale);
  loaded.growth_factor = read_number(state, "growth_factor");
  loaded.backoff_factor = read_number(state, "backoff_factor");
  check_factors("GradScaler::load_state_dict", loaded);
  constexpr int64_t kMaxExact = int64_t{1} << 53;
  loaded.growth_interval = read_integer(state, "growth_interval", 1, kMaxExact);
  constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
  const int64_t growth = read_integer(state, "_growth_tracker", 0, kMaxInt);
  int64_t hysteresis = data_->options.hysteresis_steps;
  if (data_->options.hysteresis_steps > 1 && state.count(kHysteresisTracker) != 0) {
    hysteresis = std::min(hysteresis, read_integer(state, kHysteresisTracker, 0, kMaxInt));
  }

  data_->options = loaded;
  data_->init_growth_tracker = growth;
  data_->init_hysteresis_tracker = hysteresis;
  if (!data_->scale.value.defined()) return;
  data_->scale.value.fill_(loaded.init_scale);
  data_->scale.growth_tracker.fill_(growth);
  if (data_->scale.hysteresis_tracker.defined()) data_->scale.hysteresis_tracker.fill_(hysteresis);
  data_->restored = {};
}

std::map<std::string, at::Tensor> scaler_state_to_tensors(const GradScalerState& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [key, value] : state) {
    tensors[key] = at::scalar_tensor(value, value.isFloatingPoint() ? at::kDouble : at::kLong);
  }
  return tensors;
}

GradScalerState scaler_state_from_tensors(const std::map<std::string, at::Tensor>& tensors) {
  GradScalerState state;
  for (const auto& [key, tensor] : tensors) {
    TORCH_CHECK_VALUE(
        tensor.defined() && tensor.numel() == 1 && !tensor.is_complex() && tensor.scalar_type() != at::kBool,
        "scaler_state_from_tensors: '", key, "' must be one real number; got ", tensor.toString(),
        " of shape ", tensor.defined() ? tensor.sizes() : at::IntArrayRef(),
        "; pass only the scaler's own keys, without what else the file holds");
    state[key] = tensor.item();
  }
  return state;
}

}  // namespace mantissa
