#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_part_internal.h"
#include "mantissa/trainer/loop/stop_request_internal.h"
#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

/// A place between two batches, or between two epochs, where a fit decides what comes next.
struct Boundary {
  int64_t whole_epochs = 0;  ///< completed epochs
  bool is_between_epochs = false;
  /// Whether the epoch has another batch.
  bool has_next = false;
  /// Training does not end inside an accumulation window.
  bool may_end = true;
};

/// The decisions at a boundary.
struct Decision {
  bool end = false;
  bool validate = false;
  std::vector<bool> save = {};  ///< by callback: whether its checkpoint is due
};

/// Makes the decisions between batches, which several processes must make alike. Here a fit checks signals,
/// the clock and stop(), and asks callbacks whether a checkpoint is due. Any process's answer counts for
/// every process (max_of_processes()). The two functions below do the same inside a pass without gradients,
/// and FitRun::can_retry() inside a step. Everything else follows from numbers that are the same everywhere:
/// counts, metrics, which are means over all processes, and skipped steps, which follow from gradients that were
/// summed over the processes.
///
/// Its saved state is a stop() that waits for min_epochs or min_steps. One that has ended a run is not saved:
/// who resumes that run wants it to continue.
class Decisions final : public RunPart {
 public:
  /// Whether a callback wants a checkpoint now.
  using Vote = std::function<bool(Callback&)>;

  Decisions(const TrainerOptions& options, const Progress& progress, StopRequest& stop, Strategy& strategy)
      : options_(options), progress_(progress), stop_(stop), strategy_(strategy) {}

  /// Errors: c10::ValueError for a val_check_interval that does not fit the epoch, and in all processes if
  ///         they have different numbers of callbacks or of training batches, or if only some validate.
  void set_up(int64_t batches_per_epoch, bool validates);
  /// Whether a validation may come before an epoch's last batch.
  bool validates_inside_epochs() const;

  Decision decide(const Boundary& boundary, const Vote& wants_checkpoint = nullptr);
  /// Whether the options ask for a validation here that has not run yet.
  bool is_validation_due() const;
  /// The signal that ended training, else 0.
  int interrupted_by() const { return interrupted_by_; }

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  /// Whether a stop() takes effect.
  bool has_enough(int64_t whole_epochs) const;

  const TrainerOptions& options_;
  const Progress& progress_;
  StopRequest& stop_;
  Strategy& strategy_;
  bool validates_ = false;
  int64_t batches_per_epoch_ = 0, validate_every_ = 0;
  int interrupted_by_ = 0;
};

/// Returns how many batches a pass without gradients takes: as many as the process with the most has, so that
/// all processes ask is_evaluation_cut_short() equally often.
int64_t common_batches(Strategy& strategy, int64_t batches);
/// Whether a signal to any process ends the pass now.
bool is_evaluation_cut_short(Strategy& strategy);

}  // namespace mantissa
