#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A number that changes when the content of `matrix` (float32, of two dimensions, plain, at the same
/// strides) changes. It certainly changes if one element does. If several do, it stays the same with a chance
/// of about one in 2^64. It takes one read of the matrix, on libtorch's threads, and does not depend on how
/// many these are.
uint64_t fingerprint(const at::Tensor& matrix);

}  // namespace mantissa
