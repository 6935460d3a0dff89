#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace mantissa::kernels {

/// What tells whether a tensor has the values of another moment. Its address and its version do not: optimizers write
/// through data(), and memory is used again.
struct TensorContent {
  uint64_t hash;  ///< a fingerprint() of its bytes
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  bool operator==(const TensorContent&) const = default;
};

/// Returns the content of a tensor that is contiguous and on the CPU.
TensorContent content_of(const at::Tensor& tensor);

}  // namespace mantissa::kernels
