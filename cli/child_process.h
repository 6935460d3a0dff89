#pragma once

#include <functional>

#include "cli/train_run.h"

namespace mantissa::cli {

/// What a child process answered: a result, or why there is none; neither if a signal ended it.
struct ChildOutcome {
  Json result, error;
  bool usage = false;
};

/// Runs it in a process of its own: its peak memory is its own, and if it fails it takes nothing along.
/// Nothing of libtorch's threads or of CUDA may have started before: a forked child could not use them.
ChildOutcome run_in_child(const std::function<Json()>& run);

}  // namespace mantissa::cli
