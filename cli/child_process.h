#pragma once

#include <functional>

#include "cli/train_run.h"

namespace mantissa::cli {

/// The answer of a child process: a result, or an error. Both are null if a signal ended it.
struct ChildOutcome {
  Json result, error;
  bool usage = false;
};

/// Runs `run` in a child process. Its peak memory is its own, and a failure does not affect the parent.
/// Neither libtorch's threads nor CUDA may have started before, because a forked child could not use them.
ChildOutcome run_in_child(const std::function<Json()>& run);

}  // namespace mantissa::cli
