#include "mantissa/kernels/cpu/int8.h"

#include <algorithm>
#include <mutex>

#include "mantissa/kernels/cpu/builds_internal.h"
#include "mantissa/kernels/cpu/gemm_parts_internal.h"

namespace mantissa::kernels::cpu {
namespace {

constexpr int64_t kCodesPerTask = 1 << 15;  // about ten microseconds

}  // namespace

const std::vector<Int8Build>& int8_builds() {
  static const std::vector<Int8Build> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512Vnni, avx512::quantize_int8, avx512::dequantize_int8, avx512_vnni::product_int8, 12, 32},
    {CpuTier::kAvx512, avx512::quantize_int8, avx512::dequantize_int8, avx512::product_int8, 12, 32},
    {CpuTier::kAvx2, avx2::quantize_int8, avx2::dequantize_int8, avx2::product_int8, 6, 16},
#endif
    {CpuTier::kGeneric, generic::quantize_int8, generic::dequantize_int8, generic::product_int8, 1, 64}
  };
  return builds;
}

const Int8Build& int8_build() {
  static const Int8Build& build = build_for(int8_builds(), cpu_features());
  return build;
}

void quantize_int8(const QuantizeInt8& problem, uint8_t* outliers, const Int8Build& build) {
  std::mutex mutex;
  at::parallel_for(0, problem.rows, divide_up(kCodesPerTask, problem.cols), [&](int64_t begin, int64_t end) {
    if (outliers == nullptr) return build.quantize(problem, begin, end, nullptr);
    std::vector<uint8_t> found(static_cast<size_t>(problem.cols), 0);
    build.quantize(problem, begin, end, found.data());
    const std::lock_guard lock(mutex);
    std::transform(found.begin(), found.end(), outliers, outliers,
                   [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); });
  });
}

void dequantize_int8(const DequantizeInt8& problem, const Int8Build& build) {
  at::parallel_for(0, problem.count, divide_up(kCodesPerTask, problem.cols),
                   [&](int64_t begin, int64_t end) { build.dequantize(problem, begin, end); });
}

void product_int8(const ProductInt8& problem, const Int8Build& build) {
  const Gemm g = gemm_of(problem);
  for_each_part(g, {build.mr, build.nr}, [&](const GemmPart& part, const GemmScratch& scratch) {
    build.product(problem, g, part, scratch);
  });
}

}  // namespace mantissa::kernels::cpu
