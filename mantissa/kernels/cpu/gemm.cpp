#include "mantissa/kernels/cpu/gemm.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include <c10/util/irange.h>

#include "mantissa/kernels/cpu/micro_tile_cost_internal.h"
#include "mantissa/kernels/cpu/parts_internal.h"
#include "mantissa/kernels/cpu/scratch_internal.h"

namespace mantissa::kernels::cpu {
namespace {

/// Returns this thread's working memory for parts of up to rows x cols.
GemmScratch scratch_for(const GemmBuild& build, int64_t rows, int64_t cols, int64_t k) {
  const int64_t depth = std::min(k, kGemmKC);
  const int64_t block_cols = round_up(std::min(cols, kGemmNC), build.nr);
  const auto line = [](int64_t floats) { return round_up(floats, 16); };
  const int64_t a = line(round_up(std::min(rows, kGemmMC), build.mr) * depth + kGemmSlack);
  const int64_t b = line(block_cols * depth + kGemmSlack);
  const int64_t sums = line(round_up(std::min(rows, kGemmSumRows), build.mr) * block_cols);
  float* const memory = thread_scratch(a + b + sums);
  return {memory, memory + a, memory + a + b};
}

/// A partition of a result into rows x cols parts of at most row_step x col_step.
struct Grid {
  int64_t rows = 1, cols = 1, row_step = 0, col_step = 0;
};

/// Cuts the result into `parts` parts. The largest part decides when all are done. Its cost is its
/// multiplications plus the packing of its operands, which costs about 6 multiplications per element.
Grid grid_for(const Gemm& g, const GemmBuild& build, int64_t parts) {
  Grid best;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t rows = 1; rows <= parts; ++rows) {
    if (parts % rows != 0) continue;
    const int64_t row_step = round_up(divide_up(g.m, rows), build.mr);
    const int64_t col_step = round_up(divide_up(g.n, parts / rows), build.nr);
    const int64_t cost = row_step * col_step + 6 * (row_step + col_step);
    if (cost < best_cost) {
      best_cost = cost;
      best = {divide_up(g.m, row_step), divide_up(g.n, col_step), row_step, col_step};
    }
  }
  return best;
}

Gemm transposed(Gemm g) {
  std::swap(g.m, g.n);
  std::swap(g.a, g.b);
  for (ConstMatrix* const matrix : {&g.a, &g.b, &g.addend}) std::swap(matrix->row_stride, matrix->col_stride);
  std::swap(g.out.row_stride, g.out.col_stride);
  return g;
}

/// Returns the cost of its micro-tiles, in vector multiplications, plus that of results that are not adjacent
/// along rows.
int64_t cost_of(const Gemm& g, const GemmBuild& build) {
  constexpr int64_t kScatteredCost = 3;
  return micro_panels_cost(g.m, g.n, build.mr, build.nr) * g.k * g.terms +
         (g.out.col_stride == 1 ? 0 : kScatteredCost * g.m * g.n);
}

/// Returns `g` or its transpose: the one with few rows, or else the one that costs less.
Gemm oriented(const Gemm& g, const GemmBuild& build) {
  const Gemm turned = transposed(g);
  const bool turn = std::min(g.m, g.n) <= 3 ? g.n < g.m : cost_of(turned, build) < cost_of(g, build);
  return turn ? turned : g;
}

}  // namespace

const std::vector<GemmBuild>& gemm_builds() {
  static const std::vector<GemmBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512Bf16, avx512_bf16::gemm, 12, 32},
    {CpuTier::kAvx512, avx512::gemm, 12, 32},
    {CpuTier::kAvx2, avx2::gemm, 6, 16},
#endif
    {CpuTier::kGeneric, generic::gemm, 1, 64}
  };
  return builds;
}

void gemm(const Gemm& given, const GemmBuild& build) {
  const Gemm g = oriented(given, build);
  const int64_t threads = threads_for(g.m * g.n * g.k * g.batch * g.terms);
  // Each task is a whole matrix, unless there are so few matrices that some threads would wait for others.
  const bool many = g.batch % threads == 0 || g.batch >= 8 * threads;
  const Grid grid = grid_for(g, build, many ? 1 : threads / std::gcd(threads, g.batch));
  const int64_t parts = grid.rows * grid.cols, tasks = parts * g.batch;

  at::parallel_for(0, tasks, divide_up(tasks, threads), [&](int64_t begin, int64_t end) {
    const GemmScratch scratch =
        scratch_for(build, std::min(g.m, grid.row_step), std::min(g.n, grid.col_step), g.k);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t row = task % parts / grid.cols * grid.row_step, col = task % grid.cols * grid.col_step;
      build.run(
          g, {task / parts, row, std::min(g.m, row + grid.row_step), col, std::min(g.n, col + grid.col_step)},
          scratch);
    }
  });
}

}  // namespace mantissa::kernels::cpu
