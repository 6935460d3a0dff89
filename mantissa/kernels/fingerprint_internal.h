#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A number by which another content of `matrix` (float32, of two dimensions, plain, at the same strides) is told: the
/// number differs for certain if one element does, and but for one chance in some 2^64 if several do. It takes one read of
/// the matrix, on libtorch's threads, and does not depend on how many these are.
uint64_t fingerprint(const at::Tensor& matrix);

}  // namespace mantissa
