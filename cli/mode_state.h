#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"

namespace mantissa::cli {

/// Returns the state of the mode in a checkpoint's state; empty if it has none.
StateDict mode_state_in(const StateDict& checkpoint);

/// Returns the state of the mode that belongs to the weights.safetensors of a complete run: that of the checkpoint of its
/// last step. It is empty if there is none. A checkpoint that cannot be read causes a warning.
StateDict mode_state_of_result(const std::filesystem::path& run);

/// Returns a callback that gives the mode of an evaluation what it had beside the weights in training, such as the scales of
/// FP8 layers, so that the evaluation has the bits of one inside the run. A warning says what `state` lacks, and names
/// `weights`, the file of the weights.
std::shared_ptr<Callback> loads_mode_state(StateDict state, std::string weights);

}  // namespace mantissa::cli
