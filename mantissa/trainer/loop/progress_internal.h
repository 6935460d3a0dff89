#pragma once

#include <chrono>
#include <cstdint>

#include "mantissa/amp/step_result.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/loop/run_part_internal.h"
#include "mantissa/trainer/progress.h"

namespace mantissa {

/// The position of a run: its epochs, batches and steps, the open accumulation window, and the time.
///
/// Gradients of an open window are not saved. A resumed run starts the window again, so a checkpoint inside a
/// window stores the progress from before it.
class Progress final : public RunPart {
 public:
  const FitProgress& now() const { return now_; }
  const SkippedSteps& skipped_steps() const { return skipped_steps_; }
  /// How often a window was computed again because its gradients had overflowed.
  int64_t retries() const { return retries_; }
  /// Includes the time of all runs that this one resumes.
  double seconds() const { return earlier_seconds_ + own_seconds(); }
  double own_seconds() const;

  /// The position from which a run continues that resumes from the state saved now.
  FitProgress resumes_at() const;
  /// Whether that run continues bit for bit. It does not if the state is saved inside a batch or a window.
  bool resumes_exactly() const;
  bool is_validated() const { return now_.validated_batches == now_.total_batches; }

  /// Batches whose gradients wait for a step.
  int64_t window_batches() const { return window_batches_; }
  bool is_inside_window() const { return window_batches_ > 0; }

  void begin_batch() { place_ = Place::kComputing; }
  /// Adds a batch whose gradients wait for a step.
  void extend_window() { ++window_batches_; }
  void end_window() { window_batches_ = 0; }
  void add_step(const StepResult& step);
  void add_retry() { ++retries_; }
  /// The batch has made its last write, and its callbacks come next.
  void end_computing() { place_ = Place::kReporting; }
  void count_batch();
  void end_batch() { place_ = Place::kBetweenBatches; }
  void end_validation() { now_.validated_batches = now_.total_batches; }
  void end_epoch();
  /// Records that an exception ends the run, which counts as inside a batch if the batch has not ended.
  void fail() { is_broken_ = place_ != Place::kBetweenBatches; }

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;
  /// Returns the number of steps in a saved state.
  static StateReader steps_in(const StateReader& state);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Place { kBetweenBatches, kComputing, kReporting };

  FitProgress now_;
  SkippedSteps skipped_steps_;
  int64_t retries_ = 0;
  int64_t window_batches_ = 0;
  Place place_ = Place::kBetweenBatches;
  bool is_broken_ = false;
  Clock::time_point start_ = Clock::now();
  double earlier_seconds_ = 0;
};

}  // namespace mantissa
