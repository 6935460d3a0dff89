#pragma once

#include <functional>

#include <torch/serialize/archive.h>

#include "mantissa/core/state_dict.h"

namespace mantissa {

/// What a save() writes, as a tree with the archive's own names. A tuple of numbers becomes a list, an
/// undefined tensor nothing; no tensor is copied.
///
/// Errors: c10::NotImplementedError for other lists of numbers, which read_from() could not tell from a
///         tuple, and for what a state has no kind for.
StateDict written_by(const std::function<void(torch::serialize::OutputArchive&)>& save);

/// Calls `load` with an archive that holds `state`, whose tensors are the archive's: the way back.
void read_from(const StateDict& state, const std::function<void(torch::serialize::InputArchive&)>& load);

}  // namespace mantissa
