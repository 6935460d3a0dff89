#pragma once

#include <cstdint>

namespace mantissa {

/// Where a fit stands.
struct FitProgress {
  int64_t epoch = 0;               ///< in training, or the next; from 0
  int64_t batches = 0;             ///< done in this epoch
  int64_t total_batches = 0;       ///< done in all epochs
  int64_t steps = 0;               ///< optimizer steps, skipped ones included
  int64_t validated_batches = -1;  ///< total_batches at the last validation
};

}  // namespace mantissa
