#pragma once

#include <cstdint>

namespace mantissa::kernels::cpu {

/// A float32 matrix in this machine's memory. Strides count elements.
struct FloatMatrix {
  const float* data;
  int64_t rows, columns, row_stride, column_stride;
};

/// A number that changes when the content of `matrix` changes: XXH3 of pieces of it. Two contents have the same 64 bits
/// by chance alone. The number depends on the strides, but neither on the number of threads nor on the CPU.
///
/// Threads: at::get_num_threads() of them; the matrix is read once.
uint64_t fingerprint(const FloatMatrix& matrix);

}  // namespace mantissa::kernels::cpu
