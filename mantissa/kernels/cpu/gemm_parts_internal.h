#pragma once

// Partitions blocked products into parts for threads.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include <c10/util/irange.h>

#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/cpu/parts_internal.h"
#include "mantissa/kernels/cpu/scratch_internal.h"

namespace mantissa::kernels::cpu {

/// The size of a build's micro-tiles.
struct MicroTile {
  int64_t mr, nr;
};

/// Returns this thread's working memory for parts of up to rows x cols.
inline GemmScratch scratch_for(const MicroTile& tile, int64_t rows, int64_t cols, int64_t k) {
  const int64_t depth = std::min(k, kGemmKC);
  const int64_t block_cols = round_up(std::min(cols, kGemmNC), tile.nr);
  const auto line = [](int64_t floats) { return round_up(floats, 16); };
  const int64_t a = line(round_up(std::min(rows, kGemmMC), tile.mr) * depth + kGemmSlack);
  const int64_t b = line(block_cols * depth + kGemmSlack);
  const int64_t sums = line(round_up(std::min(rows, kGemmSumRows), tile.mr) * block_cols);
  float* const memory = thread_scratch(a + b + sums);
  return {memory, memory + a, memory + a + b};
}

/// A partition of a result into rows x cols parts of at most row_step x col_step.
struct Grid {
  int64_t rows = 1, cols = 1, row_step = 0, col_step = 0;
};

/// Cuts the result into `parts` parts. The largest part decides when all are done. Its cost is its
/// multiplications plus the packing of its operands, which costs about 6 multiplications per element.
inline Grid grid_for(const Gemm& g, const MicroTile& tile, int64_t parts) {
  Grid best;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t rows = 1; rows <= parts; ++rows) {
    if (parts % rows != 0) continue;
    const int64_t row_step = round_up(divide_up(g.m, rows), tile.mr);
    const int64_t col_step = round_up(divide_up(g.n, parts / rows), tile.nr);
    const int64_t cost = row_step * col_step + 6 * (row_step + col_step);
    if (cost < best_cost) {
      best_cost = cost;
      best = {divide_up(g.m, row_step), divide_up(g.n, col_step), row_step, col_step};
    }
  }
  return best;
}

/// Calls run(part, scratch) for parts that together are the whole product. scratch_of(rows, cols) is the working
/// memory of the thread that calls it, for parts of up to rows x cols.
template <typename ScratchOf, typename Run>
void for_each_part(const Gemm& g, const MicroTile& tile, const ScratchOf& scratch_of, const Run& run) {
  const int64_t threads = threads_for(g.m * g.n * g.k * g.batch * g.terms);
  // Each task is a whole matrix, unless there are so few matrices that some threads would wait for others.
  const bool many = g.batch % threads == 0 || g.batch >= 8 * threads;
  const Grid grid = grid_for(g, tile, many ? 1 : threads / std::gcd(threads, g.batch));
  const int64_t parts = grid.rows * grid.cols, tasks = parts * g.batch;

  at::parallel_for(0, tasks, divide_up(tasks, threads), [&](int64_t begin, int64_t end) {
    const auto scratch = scratch_of(std::min(g.m, grid.row_step), std::min(g.n, grid.col_step));
    for (const auto task : c10::irange(begin, end)) {
      const int64_t row = task % parts / grid.cols * grid.row_step, col = task % grid.cols * grid.col_step;
      run(GemmPart{task / parts, row, std::min(g.m, row + grid.row_step), col,
                   std::min(g.n, col + grid.col_step)},
          scratch);
    }
  });
}

template <typename Run>
void for_each_part(const Gemm& g, const MicroTile& tile, const Run& run) {
  for_each_part(
      g, tile, [&](int64_t rows, int64_t cols) { return scratch_for(tile, rows, cols, g.k); }, run);
}

}  // namespace mantissa::kernels::cpu
