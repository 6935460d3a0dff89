#pragma once

// How work is cut into parts for threads.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "mantissa/core/parallel_internal.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa {

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
inline int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// Where the part begins that has so many elements before it; void* or const void*.
template <typename Pointer>
Pointer advanced(Pointer data, cpu::Element element, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return static_cast<Byte*>(data) + elements * (element == cpu::Element::kFloat32 ? 4 : 2);
}

/// The cost of one step of depth in multiplications of vectors, for tiles of `vectors` vectors that have
/// `rows` rows in all. A tile waits for its eight last sums: four cycles in two units.
inline int64_t tiles_cost(int64_t rows, int64_t tile_rows, int64_t vectors) {
  constexpr int64_t kWaits = 8;
  const int64_t rest = rows % tile_rows;
  return rows / tile_rows * std::max(tile_rows * vectors, kWaits) +
         (rest == 0 ? 0 : std::max(rest * vectors, kWaits));
}

/// The same for `cols` columns, which whole tiles of two vectors and a rest of them share.
inline int64_t panels_cost(int64_t rows, int64_t cols, int64_t tile_rows, int64_t tile_cols) {
  const int64_t rest = divide_up(cols % tile_cols, divide_up(tile_cols, 2));  // in vectors
  return cols / tile_cols * tiles_cost(rows, tile_rows, 2) +
         (rest == 0 ? 0 : tiles_cost(rows, tile_rows, rest));
}

/// Threads for so many multiplications. Waking them costs some microseconds: each shall have about five of
/// work.
inline int64_t threads_for(int64_t products) {
  constexpr int64_t kProductsPerThread = int64_t{1} << 18;
  const int64_t worth = std::max<int64_t>(1, products / kProductsPerThread);
  return at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), worth);
}

}  // namespace mantissa
