#pragma once

#include <string>
#include <vector>

#include "mantissa/core/state_dict.h"

namespace mantissa {

/// Returns the states of the default random number generators: {"cpu": bytes, "cuda": [bytes, ...]}. A GPU's
/// state is at its index; there is no "cuda" without GPUs. The bytes are those of Generator::get_state() and
/// of Python's torch.get_rng_state().
///
/// Threads: no other thread may draw meanwhile if its place in the sequence is to be restored exactly.
StateDict rng_state();

/// Restores the generators, so that the next draw is the one that would have followed rng_state().
///
/// Returns the names of the generators that this machine lacks ("cuda:1") or that the state does not contain;
/// the latter continue from where they are.
/// Errors:  c10::ValueError for bytes that are not a state of such a generator. Nothing has changed then.
std::vector<std::string> load_rng_state(const StateReader& state);

}  // namespace mantissa
