#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"

namespace mantissa {

/// Names and meanings are Lightning's.
struct TimerOptions {
  /// Training ends after this time, which includes the time before a resume; unset: the time is only
  /// measured.
  std::optional<std::chrono::milliseconds> duration = std::nullopt;
  /// When the time is checked: after each "step" or "epoch".
  std::string interval = "step";
  /// Prints to stderr that the time is up. FitResult::stopped_by reports it in any case.
  bool verbose = true;
};

/// Measures how long training, validation, test and prediction take, and ends a fit when its time is up.
///
/// Like any stop(), it waits for min_epochs and min_steps; TrainerOptions::max_time does not.
/// Sync:    none: it measures host time, and a device may lag behind.
/// Errors:  c10::ValueError for a duration that is not above 0 and for an unknown interval, in the
///          constructor.
/// Source:  docs/callbacks/timer.md
/// Example: timer_test.cpp, Timer.EndsTrainingWhenItsTimeIsUp
class Timer final : public Callback, public Stateful {
 public:
  using Seconds = std::chrono::duration<double>;

  explicit Timer(TimerOptions options = {});

  /// For kFit: the time of training, including the validations inside it and the time before a resume. For
  /// the other stages: the time of the last pass, also of one inside a fit. A running stage counts until now;
  /// a stage that never began has 0.
  Seconds time_elapsed(Stage stage = Stage::kFit) const;
  /// duration - time_elapsed(); negative once the time is up, unset without a duration.
  std::optional<Seconds> time_remaining(Stage stage = Stage::kFit) const;

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_start(Trainer& trainer) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;
  void on_epoch_end(Trainer& trainer, int64_t epoch, int64_t global_step, const Metrics& metrics) override;
  void on_train_end(Trainer& trainer) override;
  void on_validation_start(Trainer& trainer) override;
  void on_validation_end(Trainer& trainer) override;
  void on_test_start(Trainer& trainer) override;
  void on_test_end(Trainer& trainer) override;
  void on_predict_start(Trainer& trainer) override;
  void on_predict_end(Trainer& trainer) override;
  void teardown(Trainer& trainer, Stage stage) override;

  /// The seconds of training so far.
  StateDict state_dict() const override { return {{"time_elapsed", time_elapsed().count()}}; }
  void load_state_dict(const StateReader& state) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Watch {
    Clock::time_point start = {};
    Seconds before = {};  ///< of the run that this one resumes
    Seconds total = {};   ///< once the stage has ended
    bool runs = false;
  };

  Watch& watch(Stage stage) { return watches_.at(static_cast<size_t>(stage)); }
  const Watch& watch(Stage stage) const { return watches_.at(static_cast<size_t>(stage)); }
  void begin(Stage stage);
  void end(Stage stage);
  void check_time(Trainer& trainer);

  TimerOptions options_;
  std::array<Watch, 4> watches_;  ///< by Stage
  bool has_reported_ = false;
};

}  // namespace mantissa
