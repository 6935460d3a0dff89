#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa::kernels {

/// Returns a fingerprint() of the bytes of a tensor, which is contiguous and on the CPU. Dtype and shape do not count.
uint64_t content_hash(const at::Tensor& tensor);

}  // namespace mantissa::kernels
