#pragma once

#include <functional>

#include <torch/serialize/archive.h>

#include "mantissa/core/state_dict.h"

namespace mantissa {

/// Returns what `save` writes, as a tree with the archive's own names. A tuple of numbers becomes a list; an
/// undefined tensor is left out. No tensor is copied.
///
/// Errors: c10::NotImplementedError for other lists of numbers, which read_from() could not tell from a
///         tuple, and for values of kinds that a state does not have.
StateDict written_by(const std::function<void(torch::serialize::OutputArchive&)>& save);

/// The inverse of written_by(): calls `load` with an archive that holds `state` and shares its tensors.
void read_from(const StateDict& state, const std::function<void(torch::serialize::InputArchive&)>& load);

}  // namespace mantissa
