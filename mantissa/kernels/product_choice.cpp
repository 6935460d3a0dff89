#include <algorithm>
#include <limits>

#include <ATen/Context.h>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/core/device.h"
#include "mantissa/kernels/product_choice_internal.h"

namespace mantissa::products {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// Where libtorch's kernel is the faster, as gemm_bench.cpp measured it.
struct StockIsFaster {
  int64_t rows_below;  ///< with fewer rows or columns
  int64_t rows_from;   ///< with as many rows and columns, if the product is also as large as
  int64_t size_from;   ///< this: m * n * k
  int64_t batch_from;  ///< or a batch of them as large as this: batch * m * n * k
  int64_t dots_below;  ///< products of two vectors with fewer elements
};
/// The CPU multiplies tiles of this dtype (AMX), or has its arithmetic (AVX512-FP16). oneDNN makes use of that, but
/// reads a matrix that is used once slowly, and small products are done here before it has looked up its kernel.
constexpr StockIsFaster kTiles = {0, 4, int64_t{96} * 96 * 96, int64_t{96} * 96 * 96, 4096};
/// It multiplies vectors of pairs of bf16, and so do the kernels here, which pack a matrix even where it is used
/// for one tile's columns or two.
constexpr StockIsFaster kPairs = {0, 4, kNever, (int64_t{1} << 24) + 1, 4096};
/// Emulated, libtorch's matrix products are up to 400 times slower than float32; its products of vectors as
/// fast.
constexpr StockIsFaster kEmulated = {0, kNever, kNever, kNever, kNever};
/// Plain loops pack what they use once, too.
constexpr StockIsFaster kGeneric = {16, kNever, kNever, kNever, kNever};

}  // namespace

bool is_native(cpu::Element element) {
  static const bool bf16 = cpu_tier() == CpuTier::kAvx512Bf16;
  static const bool fp16 = bf16 && dtype_support(at::kCPU, at::kHalf).support == DtypeSupport::kNative;
  return (element == cpu::Element::kBFloat16 ? bf16 : fp16) && at::globalContext().userEnabledMkldnn();
}

namespace {

const StockIsFaster& stock_for(cpu::Element element) {
  static const bool has_bf16_tiles = cpu_has("amx_bf16");
  if (is_native(element)) return element == cpu::Element::kBFloat16 && !has_bf16_tiles ? kPairs : kTiles;
  return cpu_tier() == CpuTier::kGeneric ? kGeneric : kEmulated;
}

}  // namespace

bool is_faster_here(const cpu::Gemm& g, bool is_dot) {
  const StockIsFaster& stock = stock_for(g.a.element);
  if (is_dot) return g.k >= stock.dots_below;
  const int64_t rows = std::min(g.m, g.n), size = g.m * g.n * g.k * g.batch;
  return rows >= stock.rows_below &&
         (rows < stock.rows_from || size < (g.batch > 1 ? stock.batch_from : stock.size_from));
}

bool is_faster_here(const cpu::Attention&) {
  return cpu_tier() != CpuTier::kGeneric;  // plain loops widen what they read again and again
}

}  // namespace mantissa::products
