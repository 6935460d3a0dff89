#include <algorithm>
#include <atomic>
#include <cstring>

#include <ATen/Parallel.h>

#include "mantissa/kernels/fingerprint_internal.h"
#include "mantissa/kernels/parts_internal.h"

namespace mantissa {
namespace {

/// A bijection of 64 bits in which each bit of the input reaches each of the output (splitmix64's end).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

uint32_t word(const float* x) {
  uint32_t word;
  std::memcpy(&word, x, sizeof word);
  return word;
}

/// Of `count` elements that are `stride` apart. Each lane keeps a sum, which any one element changes, and the
/// sum of its sums, which the elements' order changes: two additions a vector, so that memory is what takes
/// the time.
template <typename Stride>
uint64_t fingerprint(const float* data, int64_t count, Stride stride) {
  constexpr int64_t kLanes = 16;
  uint32_t sums[kLanes] = {}, sums_of_sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += word(data + (i + lane) * stride);
      sums_of_sums[lane] += sums[lane];
    }
  uint64_t result = mixed(static_cast<uint64_t>(count));
  for (int64_t lane = 0; lane < kLanes; ++lane)
    result = mixed(result ^ (static_cast<uint64_t>(sums_of_sums[lane]) << 32 | sums[lane]));
  for (; i < count; ++i) result = mixed(result ^ word(data + i * stride));
  return result;
}

}  // namespace

uint64_t fingerprint(const at::Tensor& matrix) {
  int64_t rows = matrix.size(0), columns = matrix.size(1), row_stride = matrix.stride(0),
          column_stride = matrix.stride(1);
  if (row_stride < column_stride) {
    std::swap(rows, columns);
    std::swap(row_stride, column_stride);
  }
  if (column_stride == 1 && row_stride == columns) {
    columns *= rows;
    rows = 1;
  }
  // The same pieces on any number of threads: within a row, so long that a call does not count.
  constexpr int64_t kPiece = 1 << 13;
  const auto* const data = matrix.const_data_ptr<float>();
  const int64_t pieces = divide_up(columns, kPiece);
  std::atomic<uint64_t> result = 0;
  at::parallel_for(0, rows * pieces, std::max<int64_t>(1, (1 << 16) / std::min(columns, kPiece)),
                   [&](int64_t begin, int64_t end) {
                     uint64_t sum = 0;
                     for (int64_t piece = begin; piece < end; ++piece) {
                       const int64_t first = piece % pieces * kPiece;
                       const float* const from = data + piece / pieces * row_stride + first * column_stride;
                       const int64_t count = std::min(kPiece, columns - first);
                       const uint64_t of_piece =
                           column_stride == 1 ? fingerprint(from, count, std::integral_constant<int64_t, 1>())
                                              : fingerprint(from, count, column_stride);
                       sum += mixed(of_piece + static_cast<uint64_t>(piece));
                     }
                     result += sum;
                   });
  return result;
}

}  // namespace mantissa
