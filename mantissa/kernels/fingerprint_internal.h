#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A number that changes when the content of `matrix` (float32, of two dimensions, plain, at the same
/// strides) changes: XXH3 of pieces of it, whose 64 bits stay the same by chance alone. It takes one read of
/// the matrix, on libtorch's threads, and does not depend on how many these are, nor on the CPU.
uint64_t fingerprint(const at::Tensor& matrix);

}  // namespace mantissa
