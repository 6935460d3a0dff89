#pragma once

#include <string>
#include <vector>

#include "mantissa/core/state_dict.h"

namespace mantissa {

/// The default random number generators: {"cpu": bytes, "cuda": [bytes, ...]}, a GPU's by its index, and no
/// "cuda" without GPUs. The bytes are those of Generator::get_state() and of Python's torch.get_rng_state().
///
/// Threads: nobody may draw meanwhile who wants to find his place in the sequence again.
StateDict rng_state();

/// Puts the generators back, so that the next draw is the one that would have come after rng_state().
///
/// Returns the names of those that this machine lacks ("cuda:1") or that the state does not have: their draws
/// go on from where they are.
/// Errors:  c10::ValueError for bytes that are no such generator's state. Nothing has changed then.
std::vector<std::string> load_rng_state(const StateReader& state);

}  // namespace mantissa
