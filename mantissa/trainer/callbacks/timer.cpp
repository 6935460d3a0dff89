#include "mantissa/trainer/callbacks/timer.h"

#include <cstdio>
#include <fmt/format.h>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

Timer::Timer(TimerOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(!options_.duration || options_.duration->count() > 0,
                    "Timer: duration=", options_.duration->count(),
                    " ms; give more than 0, or leave it unset");
  TORCH_CHECK_VALUE(options_.interval == "step" || options_.interval == "epoch", "Timer: unknown interval '",
                    options_.interval, "'", did_you_mean(options_.interval, {"step", "epoch"}),
                    "; choose step or epoch");
}

Timer::Seconds Timer::time_elapsed(Stage stage) const {
  const Watch& watch = this->watch(stage);
  return watch.runs ? Seconds(watch.before + (Clock::now() - watch.start)) : watch.total;
}

std::optional<Timer::Seconds> Timer::time_remaining(Stage stage) const {
  if (!options_.duration) return std::nullopt;
  return *options_.duration - time_elapsed(stage);
}

void Timer::on_fit_start(Trainer& /*trainer*/, const FitPlan& /*plan*/) {
  watch(Stage::kFit) = {};
  has_reported_ = false;
}

// Checks at any interval: the run that this one resumes may have used all of its time.
void Timer::on_train_start(Trainer& trainer) {
  begin(Stage::kFit);
  check_time(trainer);
}

void Timer::on_train_batch_end(Trainer& trainer, const TrainBatch& /*batch*/) {
  if (options_.interval == "step") check_time(trainer);
}

void Timer::on_epoch_end(Trainer& trainer, int64_t /*epoch*/, int64_t /*global_step*/,
                         const Metrics& /*metrics*/) {
  if (options_.interval == "epoch") check_time(trainer);
}

void Timer::on_train_end(Trainer& /*trainer*/) { end(Stage::kFit); }
void Timer::on_validation_start(Trainer& /*trainer*/) { begin(Stage::kValidate); }
void Timer::on_validation_end(Trainer& /*trainer*/) { end(Stage::kValidate); }
void Timer::on_test_start(Trainer& /*trainer*/) { begin(Stage::kTest); }
void Timer::on_test_end(Trainer& /*trainer*/) { end(Stage::kTest); }
void Timer::on_predict_start(Trainer& /*trainer*/) { begin(Stage::kPredict); }
void Timer::on_predict_end(Trainer& /*trainer*/) { end(Stage::kPredict); }

// Ends stages that an exception has cut short.
void Timer::teardown(Trainer& /*trainer*/, Stage /*stage*/) {
  for (const Stage stage : {Stage::kFit, Stage::kValidate, Stage::kTest, Stage::kPredict}) end(stage);
}

void Timer::begin(Stage stage) {
  Watch& watch = this->watch(stage);
  watch = {.start = Clock::now(), .before = stage == Stage::kFit ? watch.total : Seconds(), .runs = true};
}

void Timer::end(Stage stage) {
  watch(stage).total = time_elapsed(stage);
  watch(stage).runs = false;
}

void Timer::check_time(Trainer& trainer) {
  if (!options_.duration || time_elapsed() < *options_.duration) return;
  const std::string why = fmt::format("Timer: the time limit of {:.3f} s is reached, after {:.3f} s",
                                      Seconds(*options_.duration).count(), time_elapsed().count());
  trainer.stop(why);
  if (options_.verbose && !std::exchange(has_reported_, true)) std::fputs((why + "\n").c_str(), stderr);
}

void Timer::load_state_dict(const StateReader& state) {
  constexpr double kMaxSeconds = 1e12;  // thirty thousand years
  watch(Stage::kFit).total = Seconds(state.at("time_elapsed").to_double(0, kMaxSeconds));
}

}  // namespace mantissa
