#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/rng_state.h"
#include "mantissa/core/suggest.h"
#include "mantissa/trainer/loop/random_numbers_internal.h"

namespace mantissa {

void RandomNumbers::begin_validation() { at_validation_start_ = rng_state(); }

void RandomNumbers::resume() {
  if (!to_resume_) return;
  const std::vector<std::string> missing = load_rng_state(StateReader(*to_resume_, "rng"));
  to_resume_.reset();  // only now: if loading fails, a checkpoint still has them
  if (!missing.empty()) {
    TORCH_WARN(
        "the random numbers of ", join_names(missing),
        " continue from their current state, because only the checkpoint or only this machine has such a "
        "generator; results differ from an uninterrupted run");
  }
}

void RandomNumbers::save(StateDict& state) const {
  state.emplace("rng", to_resume_ ? *to_resume_ : at_validation_start_ ? *at_validation_start_ : rng_state());
}

void RandomNumbers::load(const StateReader& state, Differences& differences) {
  load_if_saved(state, "rng", "the sequence of random numbers", differences,
                [&](const StateReader& saved) { to_resume_ = saved.to_dict(); });
}

}  // namespace mantissa
