#pragma once

#include <cstdint>
#include <string>

#include "mantissa/data/batch.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

class Task;

/// What training holds in memory, by what it is held for. A tensor that two of these share, as tied weights
/// are, counts once and for the first of them.
///
/// Not in it: the batch as the loader gives it, what callbacks keep (an average of the weights), libtorch
/// itself, and what memory allocators hold back.
/// Units: bytes.
struct MemoryPlan {
  std::string precision;         ///< the mode's canonical name
  int64_t weights = 0;           ///< the module's parameters
  int64_t buffers = 0;           ///< such as batch norm's statistics
  int64_t masters = 0;           ///< what the optimizer steps and is no parameter of the module
  int64_t gradients = 0;         ///< of both, as the step finds them
  int64_t optimizer_states = 0;  ///< after a step
  int64_t activations = 0;       ///< what a forward pass leaves for the backward pass, its loss included
  /// The most that there is at once from the second batch on: with temporaries, the mode's copy of the batch,
  /// and on a GPU the batch after it, which is on its way then. With automatic optimization at least total(): the end of a forward pass finds all of it
  /// together, since gradients are cleared after it.
  int64_t peak = 0;

  int64_t total() const { return weights + buffers + masters + gradients + optimizer_states + activations; }
};

/// Counts what Trainer(options).fit() would hold while it trains `task` on batches like `batch`, by training
/// two of them with gradients of 0. `task` is used up by that: give one of its own, made as the one that will
/// be trained. Of the options those of the precision, the device and clipping count; callbacks and loggers
/// hear nothing. The default generators' random numbers are as before.
///
/// Numerics: exact for tensors of the CPU's and CUDA's allocators; CUDA rounds each up to 512 bytes, which
///           `activations` and `peak` have in them.
/// Errors:   those of the Trainer; c10::ValueError if the task takes no step on `batch`; c10::Error where a
///           profiler runs in this thread, and if a signal asked for the end before;
///           c10::NotImplementedError for an optimizer whose state cannot be told (optimizer_state()).
/// Threads:  as a run of a Trainer.
/// Example:  memory_plan_test.cpp, MemoryPlan.EveryNumberOfAModeIsKnown.
MemoryPlan plan_memory(Task& task, const Batch& batch, const TrainerOptions& options = {});

}  // namespace mantissa
