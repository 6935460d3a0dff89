#pragma once

#include <optional>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/loop/run_part_internal.h"

namespace mantissa {

/// Where the default generators stood when the next thing that a resumed run does began.
class RandomNumbers final : public RunPart {
 public:
  /// A resumed run makes a validation again that was broken off, with the numbers that it began with.
  void begin_validation();
  void end_validation() { of_validation_.reset(); }
  /// Puts the generators back once, before the first batch of a resumed run.
  void resume();

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  std::optional<StateDict> to_resume_, of_validation_;
};

}  // namespace mantissa
