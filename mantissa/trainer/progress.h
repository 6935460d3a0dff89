#pragma once

#include <cstdint>

namespace mantissa {

/// The position of a fit.
struct FitProgress {
  int64_t epoch = 0;               ///< the current epoch, or the next one; from 0
  int64_t batches = 0;             ///< completed in this epoch
  int64_t total_batches = 0;       ///< completed in all epochs
  int64_t steps = 0;               ///< optimizer steps, skipped ones included
  int64_t validated_batches = -1;  ///< total_batches at the last validation
};

}  // namespace mantissa
