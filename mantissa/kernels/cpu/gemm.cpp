#include "mantissa/kernels/cpu/gemm.h"

#include <algorithm>
#include <utility>

#include "mantissa/kernels/cpu/gemm_parts_internal.h"
#include "mantissa/kernels/cpu/micro_tile_cost_internal.h"

namespace mantissa::kernels::cpu {
namespace {

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
  for_each_part(g, {build.mr, build.nr},
                [&](const GemmPart& part, const GemmScratch& scratch) { build.run(g, part, scratch); });
}

}  // namespace mantissa::kernels::cpu
