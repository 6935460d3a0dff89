#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/stop_request_internal.h"
#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

/// A place between two batches, or between two epochs, where a fit asks what comes next.
struct Boundary {
  int64_t whole_epochs = 0;  ///< that are over
  bool is_between_epochs = false;
  /// Whether the epoch has another batch.
  bool has_next = false;
  /// Inside an accumulation window training does not end.
  bool may_end = true;
};

/// What comes next.
struct Decision {
  bool end = false;
  bool validate = false;
  std::vector<bool> save = {};  ///< by callback: whether its checkpoint is due
};

/// All that several processes must decide alike, in one place. Here alone a fit looks at signals, at the clock
/// and at stop(), and asks callbacks for their votes; what this process sees of them counts for every process
/// (Strategy::reduce_max). The rest follows from counts that are the same everywhere. So does whether a step
/// is skipped, which follows from gradients that were summed over the processes.
class Decisions {
 public:
  /// Whether a callback wants a checkpoint now.
  using Vote = std::function<bool(Callback&)>;

  Decisions(const TrainerOptions& options, const Progress& progress, StopRequest& stop, Strategy& strategy)
      : options_(options), progress_(progress), stop_(stop), strategy_(strategy) {}

  /// Errors: c10::ValueError for a val_check_interval that does not fit the epoch, and in all processes alike if
  ///         they have not as many callbacks.
  void set_up(int64_t batches_per_epoch, bool validates);
  /// Whether a validation may come before an epoch's last batch.
  bool validates_inside_epochs() const;

  Decision decide(const Boundary& boundary, const Vote& wants_checkpoint = nullptr);
  /// Whether the options ask for a validation here which has not been made.
  bool is_validation_due() const;
  /// The signal that has ended training, else 0.
  int interrupted_by() const { return interrupted_by_; }

 private:
  const TrainerOptions& options_;
  const Progress& progress_;
  StopRequest& stop_;
  Strategy& strategy_;
  bool validates_ = false;
  int64_t batches_per_epoch_ = 0, validate_every_ = 0;
  int interrupted_by_ = 0;
};

}  // namespace mantissa
