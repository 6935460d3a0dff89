#include "mantissa/kernels/cpu/fp8.h"

#include <algorithm>
#include <mutex>

#include "mantissa/kernels/cpu/builds_internal.h"
#include "mantissa/kernels/cpu/parts_internal.h"

namespace mantissa::kernels::cpu {
namespace {

constexpr int64_t kGrain = 1 << 15;  // values: about ten microseconds of work

/// Calls part(begin, end) in parallel and returns the magnitudes of all parts.
template <class Part>
Magnitudes merged(int64_t count, const Part& part) {
  Magnitudes all;
  std::mutex mutex;
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    const Magnitudes here = part(begin, end);
    const std::lock_guard lock(mutex);
    all.largest = std::max(all.largest, here.largest);
    all.has_nan = all.has_nan || here.has_nan;
  });
  return all;
}

}  // namespace

const std::vector<Fp8Build>& fp8_builds() {
  static const std::vector<Fp8Build> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, avx512::find_magnitudes, avx512::quantize_fp8, avx512::dequantize_fp8,
     avx512::quantize_e2m1, avx512::find_block_magnitudes, avx512::quantize_fp8_blocks,
     avx512::restore_blocks},
    {CpuTier::kAvx2, avx2::find_magnitudes, avx2::quantize_fp8, avx2::dequantize_fp8, avx2::quantize_e2m1,
     avx2::find_block_magnitudes, avx2::quantize_fp8_blocks, avx2::restore_blocks},
#endif
    {CpuTier::kGeneric, generic::find_magnitudes, generic::quantize_fp8, generic::dequantize_fp8,
     generic::quantize_e2m1, generic::find_block_magnitudes, generic::quantize_fp8_blocks,
     generic::restore_blocks}
  };
  return builds;
}

const Fp8Build& best_fp8_build() {
  static const Fp8Build& best = build_for(fp8_builds(), cpu_features());
  return best;
}

Magnitudes find_magnitudes(const FindMagnitudes& problem) {
  return merged(problem.count, [&](int64_t begin, int64_t end) {
    FindMagnitudes part = problem;
    part.in = advanced(problem.in, problem.element, begin);
    part.count = end - begin;
    return best_fp8_build().find_magnitudes(part);
  });
}

Magnitudes quantize_fp8(const QuantizeFp8& problem) {
  return merged(problem.count, [&](int64_t begin, int64_t end) {
    QuantizeFp8 part = problem;
    part.in = advanced(problem.in, problem.element, begin);
    part.codes = problem.codes + begin;
    part.count = end - begin;
    return best_fp8_build().quantize(part);
  });
}

void dequantize_fp8(const DequantizeFp8& problem) {
  at::parallel_for(0, problem.count, kGrain, [&](int64_t begin, int64_t end) {
    DequantizeFp8 part = problem;
    part.codes = problem.codes + begin;
    part.out = problem.out + begin;
    part.count = end - begin;
    best_fp8_build().dequantize(part);
  });
}

}  // namespace mantissa::kernels::cpu
