#pragma once

#include <cstdint>

namespace mantissa::kernels::cpu {

/// A float32 matrix in the CPU's memory. Strides count elements.
struct FloatMatrix {
  const float* data;
  int64_t rows, columns, row_stride, column_stride;
};

/// Returns a number that changes when the content of `matrix` changes, made of XXH3 hashes of pieces of it.
/// Two contents have the same 64 bits only by chance. The number depends on the strides, but neither on the
/// number of threads nor on the CPU.
///
/// Threads: at::get_num_threads() threads. The matrix is read once.
uint64_t fingerprint(const FloatMatrix& matrix);

}  // namespace mantissa::kernels::cpu
