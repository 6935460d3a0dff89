#pragma once

// The cost of micro-tiles, for decisions of the kernels and for the partition of work. This header follows
// the rules of element.h.

#include <cstdint>

namespace mantissa::kernels::cpu {

/// Returns the cost of one step of k, in vector multiplications, for micro-tiles of at most `mr` rows and
/// `vectors` vectors that have `rows` rows in total. A micro-tile waits for its eight last sums: four cycles
/// in two units.
template <class Build = void>
constexpr int64_t micro_tiles_cost(int64_t rows, int64_t mr, int64_t vectors) {
  constexpr int64_t kWaits = 8;
  const auto cost = [&](int64_t r) { return r * vectors < kWaits ? kWaits : r * vectors; };
  const int64_t rest = rows % mr;
  return rows / mr * cost(mr) + (rest == 0 ? 0 : cost(rest));
}

/// Returns the same for a result of rows x cols. Its micro-panels of b are `nr` columns wide, which are two
/// vectors, except for the last one.
template <class Build = void>
constexpr int64_t micro_panels_cost(int64_t rows, int64_t cols, int64_t mr, int64_t nr) {
  const int64_t vector = (nr + 1) / 2, rest = (cols % nr + vector - 1) / vector;
  return cols / nr * micro_tiles_cost<Build>(rows, mr, 2) +
         (rest == 0 ? 0 : micro_tiles_cost<Build>(rows, mr, rest));
}

}  // namespace mantissa::kernels::cpu
