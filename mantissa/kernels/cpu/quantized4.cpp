#include "mantissa/kernels/cpu/quantized4.h"

#include <algorithm>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "mantissa/kernels/cpu/builds_internal.h"
#include "mantissa/kernels/cpu/gemm_parts_internal.h"

namespace mantissa::kernels::cpu {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;  // about ten microseconds

void multiply_few_rows(const Product4& problem, const Gemm& g, const Quantized4Build& build) {
  const int64_t threads = threads_for(g.m * g.n * g.k);
  at::parallel_for(0, g.n, round_up(divide_up(g.n, threads), kStrip4), [&](int64_t begin, int64_t end) {
    // Each thread arranges the rows for itself: it takes less time than reading them from another core.
    float* const arranged = thread_scratch(arranged_floats4(problem));
    build.arrange_rows(problem, arranged);
    alignas(64) float sums[kFewRows4 * kStrip4];
    build.few_rows(problem, g, arranged, begin, end, sums);
  });
}

/// Asks Linux for AMX's tiles, which a process may not use before; a sandbox can refuse them. It is asked no earlier than
/// for the first product, because from then on a stack for signals must have room for the tiles.
bool are_tiles_granted() {
#if defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool are_granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return are_granted;
#else
  return false;
#endif
}

bool takes_tiles(const Product4& problem, const Quantized4Build& build) {
  return build.tiles != nullptr && problem.m >= first_rows_in_tiles4(problem.a.element) &&
         are_tiles_granted();
}

void multiply_in_tiles(const Product4& problem, const Gemm& g, const Quantized4Build& build) {
  const int64_t terms = terms_of4(problem.a.element), in_group = group_rows4(terms, g.m);
  const auto scratch_of = [&](int64_t rows, int64_t cols) {
    const TileScratch4 size = tile_scratch4(terms, in_group, rows, cols);
    return thread_scratch(size.rows + size.panel + size.sums);
  };
  for_each_part(g, {in_group, kTile4}, scratch_of,
                [&](const GemmPart& part, float* scratch) { build.tiles(problem, g, part, scratch); });
}

}  // namespace

const std::vector<Quantized4Build>& quantized4_builds() {
  static const std::vector<Quantized4Build> builds = {
#if defined(__x86_64__)
    {CpuTier::kAmxBf16, avx512::quantize4, avx512::dequantize4, avx512::dequantize_rows4,
     avx512_bf16::product4, avx512::arrange_rows4, avx512::few_rows4, 12, 32, amx_bf16::tiles4},
    {CpuTier::kAvx512Bf16, avx512::quantize4, avx512::dequantize4, avx512::dequantize_rows4,
     avx512_bf16::product4, avx512::arrange_rows4, avx512::few_rows4, 12, 32, nullptr},
    {CpuTier::kAvx512, avx512::quantize4, avx512::dequantize4, avx512::dequantize_rows4, avx512::product4,
     avx512::arrange_rows4, avx512::few_rows4, 12, 32, nullptr},
    {CpuTier::kAvx2, avx2::quantize4, avx2::dequantize4, avx2::dequantize_rows4, avx2::product4,
     avx2::arrange_rows4, avx2::few_rows4, 6, 16, nullptr},
#endif
    {CpuTier::kGeneric, generic::quantize4, generic::dequantize4, generic::dequantize_rows4,
     generic::product4, nullptr, nullptr, 1, 64, nullptr}
  };
  return builds;
}

const Quantized4Build& quantized4_build() {
  static const Quantized4Build& build = build_for(quantized4_builds(), cpu_features());
  return build;
}

void quantize4(const Quantize4& problem, const Quantized4Build& build) {
  const int64_t blocks = divide_up(problem.count, problem.block);
  at::parallel_for(0, blocks, divide_up(kValuesPerTask, problem.block),
                   [&](int64_t begin, int64_t end) { build.quantize(problem, begin, end); });
}

void dequantize4(const Dequantize4& problem, const Quantized4Build& build) {
  constexpr int64_t kUnit = kSmallestBlock4;  // where parts may begin
  at::parallel_for(0, divide_up(problem.count, kUnit), kValuesPerTask / kUnit,
                   [&](int64_t begin, int64_t end) {
                     build.dequantize(problem, begin * kUnit, std::min(problem.count, end * kUnit));
                   });
}

void dequantize_rows4(const DequantizeRows4& problem, const Quantized4Build& build) {
  at::parallel_for(0, problem.count, divide_up(kValuesPerTask, problem.weight.cols),
                   [&](int64_t begin, int64_t end) { build.dequantize_rows(problem, begin, end); });
}

void product4(const Product4& problem, const Quantized4Build& build) {
  const Gemm g = gemm_of(problem);
  if (build.few_rows != nullptr && is_few_rows4(problem)) return multiply_few_rows(problem, g, build);
  if (takes_tiles(problem, build)) return multiply_in_tiles(problem, g, build);
  for_each_part(g, {build.mr, build.nr}, [&](const GemmPart& part, const GemmScratch& scratch) {
    build.product(problem, g, part, scratch);
  });
}

}  // namespace mantissa::kernels::cpu
