#include <limits>

#include <c10/util/Exception.h>

#include "mantissa/trainer/loop/decisions_internal.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa {

void Decisions::set_up(int64_t batches_per_epoch, bool validates) {
  const auto callbacks = static_cast<int64_t>(options_.callbacks.size());
  const std::vector<int64_t> range = strategy_.reduce_max({callbacks, -callbacks});
  TORCH_CHECK_VALUE(range[0] == -range[1], "fit: one process has ", -range[1], " callbacks and another ",
                    range[0], "; give every process the same callbacks in the same order");
  validates_ = validates;
  batches_per_epoch_ = batches_per_epoch;
  validate_every_ = batches_per_epoch;
  const BatchLimit& interval = options_.val_check_interval;
  if (interval.is_all()) return;
  // A share below one batch counts as one batch, as in Lightning.
  validate_every_ = interval.is_share()
                        ? interval.of_at_least_one(batches_per_epoch)
                        : interval.of(std::numeric_limits<int64_t>::max(), "val_check_interval");
  TORCH_CHECK_VALUE(!validates || interval.is_share() || !options_.check_val_every_n_epoch ||
                        validate_every_ <= batches_per_epoch,
                    "fit: val_check_interval=", interval.to_string(), " is above the ", batches_per_epoch,
                    " batches of an epoch; lower it, or unset check_val_every_n_epoch to count batches "
                    "over all epochs");
}

bool Decisions::validates_inside_epochs() const {
  return validate_every_ < batches_per_epoch_ || !options_.check_val_every_n_epoch;
}

bool Decisions::is_validation_due() const {
  const FitProgress& now = progress_.now();
  if (now.batches == 0 || progress_.is_validated()) return false;
  if (!options_.check_val_every_n_epoch) return now.total_batches % validate_every_ == 0;
  return (now.epoch + 1) % *options_.check_val_every_n_epoch == 0 && now.batches % validate_every_ == 0;
}

Decision Decisions::decide(const Boundary& boundary, const Vote& wants_checkpoint) {
  const double ms = progress_.seconds() * 1e3;
  const bool is_time_up = options_.max_time && ms >= static_cast<double>(options_.max_time->count());
  std::vector<int64_t> flags{InterruptScope::requested(), is_time_up, !stop_.why().empty()};
  if (wants_checkpoint)
    for (const auto& callback : options_.callbacks) flags.push_back(wants_checkpoint(*callback));
  flags = strategy_.reduce_max(std::move(flags));
  if (flags[2] != 0) stop_.request("stop() in another process");

  const FitProgress& now = progress_.now();
  Decision decision;
  if (boundary.may_end) {
    interrupted_by_ = static_cast<int>(flags[0]);
    const bool has_all_epochs = options_.max_epochs >= 0 && boundary.whole_epochs >= options_.max_epochs;
    const bool has_all_steps = options_.max_steps >= 0 && now.steps >= options_.max_steps;
    const bool has_enough = boundary.whole_epochs >= options_.min_epochs && now.steps >= options_.min_steps;
    decision.end = interrupted_by_ != 0 || has_all_epochs || has_all_steps || flags[1] != 0 ||
                   (flags[2] != 0 && has_enough);
  }
  // The last state of a run is validated when its epoch is over, whatever the interval.
  const bool is_due = boundary.is_between_epochs
                          ? decision.end && now.batches > 0 && !progress_.is_validated()
                          : is_validation_due() && (!decision.end || !boundary.has_next);
  decision.validate = validates_ && interrupted_by_ == 0 && is_due;
  decision.save.assign(flags.begin() + 3, flags.end());
  return decision;
}

}  // namespace mantissa
