#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "mantissa/core/tree.h"

namespace mantissa {

/// What one training step works on: inputs, what they should give, and whatever else a task needs, by name.
///
/// Shapes:  the first dimension of every tensor counts the samples; `target` may stay undefined.
/// Example: batch_test.cpp, Batch.MapsEveryTensor.
struct Batch {
  at::Tensor data;
  at::Tensor target;
  std::map<std::string, at::Tensor> fields;

  /// For map_tensors(), which converts and moves all of them at once.
  auto tensors() { return std::tie(data, target, fields); }
  /// Samples; 0 if there are no data.
  int64_t size() const { return data.defined() && data.dim() > 0 ? data.size(0) : 0; }
  /// The same batch on `device`. Sync: from pinned memory to a device, none.
  Batch to(const at::Device& device) const {
    return map_tensors(*this, [&](const at::Tensor& t) { return t.to(device, /*non_blocking=*/true); });
  }
};

}  // namespace mantissa
