#pragma once

#include <cstdint>
#include <string>

#include "mantissa/data/batch.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

class Task;

/// The memory that training holds, by purpose. A tensor with two of these purposes, such as a tied weight,
/// counts once, for the first of them.
///
/// The plan does not include the batch from the loader, tensors that callbacks keep (such as averaged
/// weights), libtorch itself, and memory that allocators reserve.
/// Units: bytes.
struct MemoryPlan {
  std::string precision;         ///< the mode's canonical name
  int64_t weights = 0;           ///< the module's parameters
  int64_t buffers = 0;           ///< such as batch norm's statistics
  int64_t masters = 0;           ///< parameters that the optimizer steps and the module does not have
  int64_t mode_states = 0;       ///< other tensors of Precision::state_dict(), such as FP8 histories
  int64_t gradients = 0;         ///< of weights and masters, just before the step
  int64_t optimizer_states = 0;  ///< after a step
  int64_t activations = 0;       ///< tensors kept for the backward pass, the loss included
  /// The most memory in use at once, from the second batch on. It includes temporaries, the mode's copy of
  /// the batch and, on a GPU, the next batch, which is being transferred. With automatic optimization it is
  /// at least total(): all of it exists at the end of a forward pass, because gradients are cleared only
  /// afterwards.
  int64_t peak = 0;

  int64_t total() const {
    return weights + buffers + masters + mode_states + gradients + optimizer_states + activations;
  }
};

/// Counts the memory that Trainer(options).fit() would hold while it trains `task` on batches like `batch`.
/// For this it trains two batches with gradients of 0, which uses up `task`: pass a separate one, made like
/// the task to be trained. Only the options for the precision, the device and clipping count; the options'
/// callbacks and loggers are not called. The states of the default generators are restored.
///
/// Numerics: exact for tensors from the CPU's and CUDA's allocators. CUDA rounds each tensor up to 512 bytes,
///           which `activations` and `peak` include.
/// Errors:   those of the Trainer; c10::ValueError if the task takes no step on `batch`; c10::Error if a
///           profiler runs in this thread, or if a signal interrupts the count; c10::NotImplementedError for
///           an optimizer whose state is unknown (optimizer_state()).
/// Threads:  as for a run of a Trainer.
/// Example:  memory_plan_test.cpp, MemoryPlan.EveryNumberOfAModeIsKnown.
MemoryPlan plan_memory(Task& task, const Batch& batch, const TrainerOptions& options = {});

}  // namespace mantissa
