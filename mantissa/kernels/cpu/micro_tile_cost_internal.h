#pragma once

// What micro-tiles cost, for the decisions of a tier's kernels and for how work is cut; on the terms of element.h.

#include <cstdint>

namespace mantissa::kernels::cpu {

/// The cost of one step of k, in multiplications of vectors, for micro-tiles of up to `mr` rows and of `vectors`
/// vectors that have `rows` rows in all. A micro-tile waits for its eight last sums: four cycles in two units.
template <class Build = void>
constexpr int64_t micro_tiles_cost(int64_t rows, int64_t mr, int64_t vectors) {
  constexpr int64_t kWaits = 8;
  const auto cost = [&](int64_t r) { return r * vectors < kWaits ? kWaits : r * vectors; };
  const int64_t rest = rows % mr;
  return rows / mr * cost(mr) + (rest == 0 ? 0 : cost(rest));
}

/// The same for a result of rows x cols: its micro-panels of b are `nr` columns wide, which are two vectors, but for
/// the rest.
template <class Build = void>
constexpr int64_t micro_panels_cost(int64_t rows, int64_t cols, int64_t mr, int64_t nr) {
  const int64_t vector = (nr + 1) / 2, rest = (cols % nr + vector - 1) / vector;
  return cols / nr * micro_tiles_cost<Build>(rows, mr, 2) +
         (rest == 0 ? 0 : micro_tiles_cost<Build>(rows, mr, rest));
}

}  // namespace mantissa::kernels::cpu
