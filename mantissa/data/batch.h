#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "mantissa/core/tree.h"

namespace mantissa {

/// The data of one training step: inputs, their targets, and whatever else a task needs, by name.
///
/// Shapes:  the first dimension of every tensor counts the samples; `target` may stay undefined.
/// Example: batch_test.cpp, Batch.MapsEveryTensor.
struct Batch {
  at::Tensor data;
  at::Tensor target;
  std::map<std::string, at::Tensor> fields;

  /// Lets map_tensors() convert and move all tensors at once.
  auto tensors() { return std::tie(data, target, fields); }
  /// Returns the number of samples, counted by the first tensor that has any dimension; 0 if there is none.
  int64_t size() const { return samples().value_or(0); }
  /// Returns whether its tensors have no sample, as when all of its images have been skipped. A batch without a tensor that has any
  /// dimension is not empty.
  bool is_empty() const { return samples() == 0; }
  /// Returns the same batch on `device`.
  /// Sync: none from pinned memory to a device.
  Batch to(const at::Device& device) const {
    return map_tensors(*this, [&](const at::Tensor& t) { return t.to(device, /*non_blocking=*/true); });
  }

 private:
  /// Returns the size of the first dimension of the first tensor that has dimensions; nothing if none has.
  std::optional<int64_t> samples() const {
    for (const at::Tensor* tensor : {&data, &target})
      if (tensor->defined() && tensor->dim() > 0) return tensor->size(0);
    for (const auto& [name, tensor] : fields)
      if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
    return std::nullopt;
  }
};

}  // namespace mantissa
