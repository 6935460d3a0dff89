#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
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
  int64_t size() const {
    for (const at::Tensor* tensor : {&data, &target})
      if (tensor->defined() && tensor->dim() > 0) return tensor->size(0);
    for (const auto& [name, tensor] : fields)
      if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
    return 0;
  }
  /// Returns whether its tensors have no sample, as when all of its images have been skipped. A batch without a tensor that has any
  /// dimension is not empty.
  bool is_empty() const {
    const auto has_dimensions = [](const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0; };
    return size() == 0 && (has_dimensions(data) || has_dimensions(target) ||
                           std::any_of(fields.begin(), fields.end(),
                                       [&](const auto& field) { return has_dimensions(field.second); }));
  }
  /// Returns the same batch on `device`.
  /// Sync: none from pinned memory to a device.
  Batch to(const at::Device& device) const {
    return map_tensors(*this, [&](const at::Tensor& t) { return t.to(device, /*non_blocking=*/true); });
  }
};

}  // namespace mantissa
