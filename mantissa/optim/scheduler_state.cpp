#include <limits>

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "mantissa/core/private_member_internal.h"
#include "mantissa/optim/optimizer_state.h"

namespace mantissa {

using torch::optim::LRScheduler;
using torch::optim::ReduceLROnPlateauScheduler;

struct PlateauBest {
  using type = float ReduceLROnPlateauScheduler::*;
  friend type pointer_to(PlateauBest);
};
template struct PrivateMember<PlateauBest, &ReduceLROnPlateauScheduler::best>;
struct PlateauBadEpochs {
  using type = int ReduceLROnPlateauScheduler::*;
  friend type pointer_to(PlateauBadEpochs);
};
template struct PrivateMember<PlateauBadEpochs, &ReduceLROnPlateauScheduler::num_bad_epochs>;
struct PlateauCooldown {
  using type = int ReduceLROnPlateauScheduler::*;
  friend type pointer_to(PlateauCooldown);
};
template struct PrivateMember<PlateauCooldown, &ReduceLROnPlateauScheduler::cooldown_counter>;
struct PlateauLastEpoch {
  using type = int ReduceLROnPlateauScheduler::*;
  friend type pointer_to(PlateauLastEpoch);
};
template struct PrivateMember<PlateauLastEpoch, &ReduceLROnPlateauScheduler::last_epoch>;

namespace {

/// step_count_ is protected; a subclass can access it in any LRScheduler.
struct StepCount : LRScheduler {
  static unsigned& of(LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
  static unsigned of(const LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
};

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

}  // namespace

StateDict scheduler_state(const LRScheduler& scheduler) {
  if (const auto* stateful = dynamic_cast<const Stateful*>(&scheduler)) return stateful->state_dict();
  return {{"step_count", StepCount::of(scheduler)}};
}

void load_scheduler_state(LRScheduler& scheduler, const StateReader& state) {
  if (auto* stateful = dynamic_cast<Stateful*>(&scheduler)) return stateful->load_state_dict(state);
  StepCount::of(scheduler) =
      static_cast<unsigned>(state.at("step_count").to_int(0, std::numeric_limits<unsigned>::max()));
}

StateDict scheduler_state(const ReduceLROnPlateauScheduler& scheduler) {
  return {{"best", scheduler.*pointer_to(PlateauBest())},
          {"num_bad_epochs", scheduler.*pointer_to(PlateauBadEpochs())},
          {"cooldown_counter", scheduler.*pointer_to(PlateauCooldown())},
          {"last_epoch", scheduler.*pointer_to(PlateauLastEpoch())}};
}

void load_scheduler_state(ReduceLROnPlateauScheduler& scheduler, const StateReader& state) {
  const auto best = static_cast<float>(state.at("best").to_double());
  const int64_t bad = state.at("num_bad_epochs").to_int(0, kMaxInt);
  const int64_t cooldown = state.at("cooldown_counter").to_int(0, kMaxInt);
  const int64_t last = state.at("last_epoch").to_int(0, kMaxInt);
  scheduler.*pointer_to(PlateauBest()) = best;
  scheduler.*pointer_to(PlateauBadEpochs()) = static_cast<int>(bad);
  scheduler.*pointer_to(PlateauCooldown()) = static_cast<int>(cooldown);
  scheduler.*pointer_to(PlateauLastEpoch()) = static_cast<int>(last);
}

}  // namespace mantissa
