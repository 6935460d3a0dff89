#include <limits>
#include <string>

#include <c10/util/Exception.h>

#include "mantissa/trainer/loop/agreement_internal.h"
#include "mantissa/trainer/loop/decisions_internal.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa {

void Decisions::set_up(int64_t batches_per_epoch, bool validates) {
  check_is_common(strategy_, static_cast<int64_t>(options_.callbacks.size()), "callbacks",
                  "give every process the same callbacks in the same order");
  check_is_common(strategy_, batches_per_epoch, "training batches per epoch",
                  "give every process the same number, for example with limit_train_batches");
  check_is_common(strategy_, validates ? 1 : 0, "validation loaders",
                  "give a validation loader to every process or to none");
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
  flags = max_of_processes(strategy_, flags);
  if (flags[2] != 0) stop_.request("stop() in another process");

  const FitProgress& now = progress_.now();
  Decision decision;
  if (boundary.may_end) {
    interrupted_by_ = static_cast<int>(flags[0]);
    const bool has_all_epochs = options_.max_epochs >= 0 && boundary.whole_epochs >= options_.max_epochs;
    const bool has_all_steps = options_.max_steps >= 0 && now.steps >= options_.max_steps;
    decision.end = interrupted_by_ != 0 || has_all_epochs || has_all_steps || flags[1] != 0 ||
                   (flags[2] != 0 && has_enough(boundary.whole_epochs));
  }
  // The last state of a run is validated when its epoch is over, whatever the interval.
  const bool is_due = boundary.is_between_epochs
                          ? decision.end && now.batches > 0 && !progress_.is_validated()
                          : is_validation_due() && (!decision.end || !boundary.has_next);
  decision.validate = validates_ && interrupted_by_ == 0 && is_due;
  decision.save.assign(flags.begin() + 3, flags.end());
  return decision;
}

int64_t common_batches(Strategy& strategy, int64_t batches) {
  return max_of_processes(strategy, {batches})[0];
}

bool is_evaluation_cut_short(Strategy& strategy) {
  return max_of_processes(strategy, {InterruptScope::requested()})[0] != 0;
}

bool Decisions::has_enough(int64_t whole_epochs) const {
  return whole_epochs >= options_.min_epochs && progress_.now().steps >= options_.min_steps;
}

void Decisions::save(StateDict& state) const {
  if (const std::string why = stop_.why(); !why.empty() && !has_enough(progress_.now().epoch))
    state.emplace("waiting_stop", why);
}

void Decisions::load(const StateReader& state, Differences& /*differences*/) {
  if (const auto why = state.find("waiting_stop")) stop_.request(why->to_string());
}

}  // namespace mantissa
