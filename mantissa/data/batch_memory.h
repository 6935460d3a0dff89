#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Memory for batches that is used again. Tens of megabytes that are mapped anew for each batch would cost as much time as
/// decoding its images.
///
/// Memory:  that of the tensors that are alive, and of at most 8 that are not. It is freed when this object and all its tensors
///          are dead.
/// Threads: several threads take tensors at once, and any thread may free one.
/// Example: batch_memory_test.cpp, BatchMemory.IsUsedAgain
class BatchMemory {
 public:
  BatchMemory();
  /// Returns a contiguous tensor on the CPU without values.
  at::Tensor take(at::IntArrayRef sizes, at::ScalarType dtype) const;

 private:
  struct Free;
  std::shared_ptr<Free> free_;
};

}  // namespace mantissa
