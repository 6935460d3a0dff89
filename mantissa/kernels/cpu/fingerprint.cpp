#include "mantissa/kernels/cpu/fingerprint.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "mantissa/kernels/cpu/builds_internal.h"
#include "mantissa/kernels/cpu/fingerprint_kernel.h"
#include "mantissa/kernels/cpu/parts_internal.h"

namespace mantissa::kernels::cpu {
namespace {

/// A bijection of 64 bits: each bit of the input affects each bit of the output (the finalizer of
/// splitmix64).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

struct FingerprintBuild {
  CpuTier tier;
  FingerprintKernel* run;
};

FingerprintKernel& kernel() {
  static const std::vector<FingerprintBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, avx512::fingerprint},
    {CpuTier::kAvx2, avx2::fingerprint},
#endif
    {CpuTier::kGeneric, generic::fingerprint}
  };
  return *build_for(builds, cpu_features()).run;
}

/// Returns the hash of `count` elements that are `stride` apart.
uint64_t fingerprint(FingerprintKernel& hash, const float* data, int64_t count, int64_t stride) {
  if (stride == 1) return hash(data, count);
  constexpr int64_t kChunk = 1024;
  std::array<float, kChunk> values{};
  uint64_t result = 0;
  for (int64_t i = 0; i < count; i += kChunk) {
    const int64_t here = std::min(kChunk, count - i);
    for (int64_t k = 0; k < here; ++k) values[static_cast<size_t>(k)] = data[(i + k) * stride];
    result = mixed(result + hash(values.data(), here));
  }
  return result;
}

}  // namespace

uint64_t fingerprint(const FloatMatrix& matrix) {
  const float* const data = matrix.data;
  int64_t rows = matrix.rows, columns = matrix.columns, row_stride = matrix.row_stride,
          column_stride = matrix.column_stride;
  if (row_stride < column_stride) {
    std::swap(rows, columns);
    std::swap(row_stride, column_stride);
  }
  if (column_stride == 1 && row_stride == columns) {
    columns *= rows;
    rows = 1;
  }
  // The pieces do not depend on the number of threads. They lie within a row and are long enough to hide the
  // cost of a call.
  constexpr int64_t kPiece = 1 << 13;
  const int64_t pieces = divide_up(columns, kPiece);
  FingerprintKernel& hash = kernel();
  std::atomic<uint64_t> result = 0;
  at::parallel_for(
      0, rows * pieces, std::max<int64_t>(1, (1 << 16) / std::min(columns, kPiece)),
      [&](int64_t begin, int64_t end) {
        uint64_t sum = 0;
        for (int64_t piece = begin; piece < end; ++piece) {
          const int64_t first = piece % pieces * kPiece;
          const float* const from = data + piece / pieces * row_stride + first * column_stride;
          const int64_t count = std::min(kPiece, columns - first);
          sum += mixed(mixed(fingerprint(hash, from, count, column_stride)) + static_cast<uint64_t>(piece));
        }
        result += sum;
      });
  return result;
}

}  // namespace mantissa::kernels::cpu
