#include <algorithm>
#include <limits>

#include <ATen/Context.h>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/core/device.h"
#include "mantissa/kernels/product_choice_internal.h"

namespace mantissa::products {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// From where on libtorch's kernel is the faster, as gemm_bench.cpp measured it; in products of two elements,
/// m * n * k.
struct StockIsFaster {
  bool native;         ///< the CPU multiplies this dtype itself, and libtorch's oneDNN makes use of it
  int64_t rows_from;   ///< with fewer rows or columns the matrix is read once, which oneDNN does slowly
  int64_t size_from;   ///< smaller ones are done before oneDNN has looked up its kernel
  int64_t dots_below;  ///< products of two vectors with fewer elements
};
constexpr StockIsFaster kTable[] = {
    {.native = true, .rows_from = 4, .size_from = int64_t{96} * 96 * 96, .dots_below = 4096},
    // Emulated, libtorch's matrix products are 7 to 400 times slower than float32, and its products of
    // vectors as fast.
    {.native = false, .rows_from = kNever, .size_from = kNever, .dots_below = kNever},
};

/// Whether oneDNN multiplies this type with instructions of its own. A capped tier stands for a CPU without
/// them.
bool is_native(cpu::Element element) {
  static const bool bf16 = cpu_tier() == CpuTier::kAvx512Bf16;
  static const bool fp16 = bf16 && dtype_support(at::kCPU, at::kHalf).support == DtypeSupport::kNative;
  return (element == cpu::Element::kBFloat16 ? bf16 : fp16) && at::globalContext().userEnabledMkldnn();
}

}  // namespace

bool is_faster_here(const cpu::Gemm& g, bool is_dot) {
  const StockIsFaster& stock = kTable[is_native(g.a.element) ? 0 : 1];
  if (is_dot) return g.k >= stock.dots_below;
  return std::min(g.m, g.n) < stock.rows_from || g.m * g.n * g.k * g.batch < stock.size_from;
}

}  // namespace mantissa::products
