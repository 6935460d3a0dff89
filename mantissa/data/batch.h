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
  /// Samples, counted by the first tensor that has any dimension; 0 if there is none.
  int64_t size() const {
    for (const at::Tensor* tensor : {&data, &target})
      if (tensor->defined() && tensor->dim() > 0) return tensor->size(0);
    for (const auto& [name, tensor] : fields)
      if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
    return 0;
  }
  /// The same batch on `device`.
  /// Sync: from pinned memory to a device, none.
  Batch to(const at::Device& device) const {
    return map_tensors(*this, [&](const at::Tensor& t) { return t.to(device, /*non_blocking=*/true); });
  }
};

}  // namespace mantissa
