#include "mantissa/trainer/callbacks/divergence_monitor.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <utility>

#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/trainer/trainer.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {

DivergenceMonitor::DivergenceMonitor(DivergenceMonitorOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options_.patience >= 1 && options_.window >= 1,
                    "DivergenceMonitor: patience=", options_.patience, ", window=", options_.window,
                    "; give counts of at least 1");
  TORCH_CHECK_VALUE(options_.factor == 0 || (options_.factor > 1 && std::isfinite(options_.factor)),
                    "DivergenceMonitor: factor=", options_.factor,
                    "; give a number above 1, or 0 for no such check");
}

void DivergenceMonitor::on_fit_start(Trainer& /*trainer*/, const FitPlan& /*plan*/) {
  state_ = {};
  has_watched_ = true;
  window_sum_ = 0, window_losses_ = 0;
}

void DivergenceMonitor::on_train_batch_end(Trainer& trainer, const TrainBatch& batch) {
  if (batch.loss.defined()) window_sum_ += batch.loss.item<double>(), ++window_losses_;
  if (!batch.stepped) return;
  const int64_t losses = std::exchange(window_losses_, 0);
  const double loss = std::exchange(window_sum_, 0) / static_cast<double>(losses);
  if (losses == 0 || has_diverged()) return;
  if (std::isfinite(loss) && batch.step.cause() != SkipCause::kNonFiniteGradients) {
    state_.bad_steps = 0;
    std::vector<double>& recent = state_.recent;
    if (std::ssize(recent) == options_.window) recent.erase(recent.begin());
    recent.push_back(loss);
    if (!state_.first_mean) state_.first_mean = recent_mean();
  } else {
    ++state_.bad_steps;
  }
  judge();
  if (has_diverged()) trainer.stop("DivergenceMonitor: " + state_.reason);
}

void DivergenceMonitor::judge() {
  if (state_.bad_steps >= options_.patience) {
    state_.reason = fmt::format("the loss or the gradients have not been finite for {} step{}",
                                state_.bad_steps, state_.bad_steps == 1 ? "" : "s");
  } else if (options_.factor > 0 && is_above(options_.factor)) {
    state_.reason =
        fmt::format("the mean of the last {} losses is {:.6g}, more than {} times that of the first, {:.6g}",
                    options_.window, *recent_mean(), options_.factor, *state_.first_mean);
  }
}

std::optional<double> DivergenceMonitor::recent_mean() const {
  const std::vector<double>& recent = state_.recent;
  if (std::ssize(recent) < options_.window) return std::nullopt;
  return std::accumulate(recent.begin(), recent.end(), 0.0) / static_cast<double>(options_.window);
}

bool DivergenceMonitor::is_above(double factor) const {
  const std::optional<double> first = state_.first_mean, mean = recent_mean();
  return first && mean && *first > 0 && *mean > factor * *first;
}

bool DivergenceMonitor::is_state_good(const Trainer& trainer) const {
  // Halfway to the verdict the weights are worse than those of the last checkpoint.
  const bool has_grown = options_.factor > 0 && is_above((1 + options_.factor) / 2);
  if (has_diverged() || state_.bad_steps > 0 || has_grown) return false;
  const std::vector<at::Tensor> parameters = trainer.module()->parameters();
  return std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    // Frozen weights, such as quantized ones, stay as they are.
    return !parameter.requires_grad() ||
           at::isfinite(mantissa::dequantize(parameter.detach())).all().item<bool>();
  });
}

StateDict DivergenceMonitor::state_dict() const {
  StateList recent;
  for (const double loss : state_.recent) recent.emplace_back(loss);
  StateDict state{{"bad_steps", state_.bad_steps}, {"recent", std::move(recent)}, {"reason", state_.reason}};
  if (state_.first_mean) state.emplace("first_mean", *state_.first_mean);
  return state;
}

void DivergenceMonitor::load_state_dict(const StateReader& state) {
  State loaded{.bad_steps = state.at("bad_steps").to_count(), .reason = state.at("reason").to_string()};
  const StateReader recent = state.at("recent");
  // A run may be resumed with a shorter window.
  const int64_t size = static_cast<int64_t>(recent.size());
  for (int64_t i = std::max<int64_t>(0, size - options_.window); i < size; ++i)
    loaded.recent.push_back(recent.at(static_cast<size_t>(i)).to_double());
  if (const auto first = state.find("first_mean")) loaded.first_mean = first->to_double();
  state_ = std::move(loaded);
}

}  // namespace mantissa
