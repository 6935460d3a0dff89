#include <utility>

#include "mantissa/trainer/loop/run_metrics_internal.h"

namespace mantissa {

std::optional<double> RunMetrics::value_now(const std::string& name, const Progress& progress) const {
  const auto found = newest_.find(name);
  if (found == newest_.end()) return std::nullopt;
  const bool is_new = validation_.contains(name)
                          ? progress.is_validated()
                          : epoch_.contains(name) && measured_batches_ == progress.now().total_batches;
  return is_new ? std::optional(found->second) : std::nullopt;
}

void RunMetrics::begin_epoch() {
  training_.reset();
  validation_.clear();
}

void RunMetrics::end_batch(bool ends_window) {
  if (!ends_window) return window_.add(batch_);
  if (!window_.empty()) training_.add(std::exchange(window_, {}));
  training_.add(batch_);
}

void RunMetrics::end_training(const FitProgress& progress, Strategy& strategy) {
  epoch_ = training_.compute(strategy);
  measured_batches_ = progress.total_batches;
  for (const auto& [name, value] : epoch_)
    if (!validation_.contains(name)) newest_[name] = value;
}

void RunMetrics::end_epoch() {
  for (const auto& [name, value] : validation_) epoch_[name] = value;
}

void RunMetrics::set_validation(const Metrics& result) {
  for (const auto& [name, value] : result) newest_[name] = validation_[name] = value;
}

void RunMetrics::save(StateDict& state) const {
  state.emplace("training_metrics", training_.state_dict());
  state.emplace("epoch_metrics", to_state(epoch_));
  state.emplace("validation_metrics", to_state(validation_));
  state.emplace("callback_metrics", to_state(newest_));
}

void RunMetrics::load(const StateReader& state, Differences& /*differences*/) {
  training_.load_state_dict(state.at("training_metrics"));
  epoch_ = metrics_of(state.at("epoch_metrics"));
  validation_ = metrics_of(state.at("validation_metrics"));
  newest_ = metrics_of(state.at("callback_metrics"));
}

}  // namespace mantissa
