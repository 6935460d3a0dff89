#include "mantissa/trainer/callbacks/early_stopping.h"

#include <cmath>
#include <fmt/format.h>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), is_min_(options_.mode == "min") {
  TORCH_CHECK_VALUE(!options_.monitor.empty(), "EarlyStopping: no monitor; name a metric that the task logs");
  TORCH_CHECK_VALUE(is_min_ || options_.mode == "max", "EarlyStopping: unknown mode '", options_.mode, "'",
                    did_you_mean(options_.mode, {"min", "max"}), "; choose min or max");
  TORCH_CHECK_VALUE(options_.patience >= 0, "EarlyStopping: patience=", options_.patience,
                    "; give 0 or more checks");
  TORCH_CHECK_VALUE(std::isfinite(options_.min_delta), "EarlyStopping: min_delta=", options_.min_delta,
                    "; give a finite number");
  state_.best_score = is_min_ ? HUGE_VAL : -HUGE_VAL;
}

std::string EarlyStopping::state_key() const {
  return Callback::state_key() + "(" + options_.monitor + ", " + options_.mode + ")";
}

void EarlyStopping::on_fit_start(Trainer& trainer, const FitPlan& /*plan*/) {
  state_ = {.best_score = is_min_ ? HUGE_VAL : -HUGE_VAL};
  const TrainerOptions& run = trainer.options();
  at_epoch_end_ = options_.check_on_train_epoch_end.value_or(run.val_check_interval.is_all() &&
                                                             run.check_val_every_n_epoch == 1);
}

void EarlyStopping::on_train_start(Trainer& trainer) {
  if (state_.reason == EarlyStoppingReason::kPatienceExhausted && state_.wait_count < options_.patience)
    state_.reason = EarlyStoppingReason::kNotStopped;  // the resumed run has more patience
  if (state_.reason == EarlyStoppingReason::kNotStopped) {
    state_.message.clear();
    state_.stopped_epoch.reset();
  } else {
    trainer.stop(state_.message);
  }
}

void EarlyStopping::on_validation_end(Trainer& trainer) {
  if (at_epoch_end_ || trainer.stage() != Stage::kFit || trainer.is_sanity_checking()) return;
  const FitProgress& progress = trainer.progress();
  if (progress.validated_batches != progress.total_batches) return;  // cut short by a signal
  check(trainer, progress.epoch, trainer.callback_metrics());
}

void EarlyStopping::on_epoch_end(Trainer& trainer, int64_t epoch, int64_t /*global_step*/,
                                 const Metrics& metrics) {
  // progress().epoch still equals `epoch` if the run stopped inside it; the resumed run checks that epoch when it
  // ends.
  if (!at_epoch_end_ || trainer.progress().epoch == epoch) return;
  // There is no new value: the metric was measured before but not in this epoch, or a signal came first.
  if (!metrics.contains(options_.monitor) &&
      (trainer.callback_metrics().contains(options_.monitor) || trainer.interrupted_by() != 0))
    return;
  check(trainer, epoch, metrics);
}

void EarlyStopping::check(Trainer& trainer, int64_t epoch, const Metrics& metrics) {
  // A decision stays while min_epochs and min_steps keep the run going.
  if (trainer.options().fast_dev_run || state_.reason != EarlyStoppingReason::kNotStopped) return;
  const auto found = metrics.find(options_.monitor);
  if (found == metrics.end()) {
    TORCH_CHECK_VALUE(!options_.strict, "EarlyStopping: the monitor '", options_.monitor,
                      "' was not logged; logged were ", join_names(keys_of(metrics)),
                      did_you_mean(options_.monitor, keys_of(metrics)));
    return;
  }
  judge(found->second);
  if (state_.reason == EarlyStoppingReason::kNotStopped) return;
  state_.stopped_epoch = epoch;
  trainer.stop(state_.message);
}

void EarlyStopping::judge(double current) {
  const std::string& name = options_.monitor;
  const double best = state_.best_score;
  const char* const order = is_min_ ? "below" : "above";
  const char* const other = is_min_ ? "above" : "below";
  if (options_.check_finite && !std::isfinite(current)) {
    // The sign of a nan is arbitrary.
    return decide(EarlyStoppingReason::kNonFiniteMetric,
                  fmt::format("{} is {}{}", name, std::isnan(current) ? std::abs(current) : current,
                              std::isfinite(best) ? fmt::format("; the best was {:.6g}", best) : ""));
  }
  if (options_.stopping_threshold && is_better(current, *options_.stopping_threshold)) {
    return decide(EarlyStoppingReason::kStoppingThreshold,
                  fmt::format("{} is {:.6g}, {} the stopping_threshold {:.6g}", name, current, order,
                              *options_.stopping_threshold));
  }
  if (options_.divergence_threshold && is_better(*options_.divergence_threshold, current)) {
    return decide(EarlyStoppingReason::kDivergenceThreshold,
                  fmt::format("{} is {:.6g}, {} the divergence_threshold {:.6g}", name, current, other,
                              *options_.divergence_threshold));
  }
  if (is_better(is_min_ ? current + options_.min_delta : current - options_.min_delta, best)) {
    state_.best_score = current;
    state_.wait_count = 0;
    return;
  }
  if (++state_.wait_count < options_.patience) return;
  decide(EarlyStoppingReason::kPatienceExhausted,
         fmt::format("{} has not improved in {} check{}; the best was {:.6g}", name, state_.wait_count,
                     state_.wait_count == 1 ? "" : "s", best));
}

void EarlyStopping::decide(EarlyStoppingReason reason, std::string message) {
  state_.reason = reason;
  state_.message = "EarlyStopping: " + std::move(message);
}

StateDict EarlyStopping::state_dict() const {
  StateDict state{{"wait_count", state_.wait_count},
                  {"best_score", state_.best_score},
                  {"stopping_reason", static_cast<int64_t>(state_.reason)},
                  {"stopping_reason_message", state_.message}};
  if (state_.stopped_epoch) state.emplace("stopped_epoch", *state_.stopped_epoch);
  return state;
}

void EarlyStopping::load_state_dict(const StateReader& state) {
  constexpr auto kLast = static_cast<int64_t>(EarlyStoppingReason::kNonFiniteMetric);
  State loaded{.wait_count = state.at("wait_count").to_count(),
               .best_score = state.at("best_score").to_double(),
               .reason = static_cast<EarlyStoppingReason>(state.at("stopping_reason").to_int(0, kLast)),
               .message = state.at("stopping_reason_message").to_string()};
  if (const auto epoch = state.find("stopped_epoch")) loaded.stopped_epoch = epoch->to_count();
  state_ = std::move(loaded);
}

}  // namespace mantissa
