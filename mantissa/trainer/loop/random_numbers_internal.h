#pragma once

#include <optional>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/loop/run_part_internal.h"

namespace mantissa {

/// The states of the default generators from the start of the first thing that a resumed run does: a batch,
/// or the validation that was cut short.
class RandomNumbers final : public RunPart {
 public:
  /// A resumed run repeats a validation that was cut short with the random numbers that it started with.
  void begin_validation();
  void end_validation() { at_validation_start_.reset(); }
  /// Restores the generators once, before the first batch of a resumed run.
  void resume();

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  std::optional<StateDict> to_resume_, at_validation_start_;
};

}  // namespace mantissa
