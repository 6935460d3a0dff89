#include <algorithm>

#include "mantissa/kernels/aten/kernel_family_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa {
namespace {

/// Multiplications, from which a matrix engine such as AMX decides.
constexpr int64_t kLarge = int64_t{1} << 24, kLargeAttention = int64_t{1} << 26;

/// The rows over which decoding a weight in 4 bits is spread so far that the speed of the product itself decides.
constexpr int64_t kLargeRows4Bit = 96;

std::vector<std::string> make_family_names() {
  std::vector<std::string> names;
  for (const char* const name : {"large_product", "product", "small_product", "few_rows",
                                 "large_batched_product", "batched_product", "dot"})
    names.emplace_back(name);
  for (const char* const kind :
       {"convolution", "small_convolution", "grouped_convolution", "grouped_convolution_last", "depthwise",
        "strided_depthwise", "depthwise_last", "large_depthwise_last", "strided_depthwise_last"})
    for (const char* const pass : {"", "_by_input", "_by_weight"}) names.push_back(std::string(kind) + pass);
  for (const char* const name :
       {"large_attention", "attention", "attention_backward", "gelu", "gelu_backward", "unscale",
        "few_rows_4bit", "product_4bit", "large_product_4bit", "gradient_4bit", "large_gradient_4bit",
        "product_int8"})
    names.emplace_back(name);
  return names;
}

}  // namespace

const std::vector<std::string>& family_names() {
  static const auto& names = *new std::vector<std::string>(make_family_names());
  return names;
}

KernelFamily family_of(const kernels::Gemm& g, bool is_dot) {
  constexpr int64_t kSmall = int64_t{96} * 96 * 96;
  if (is_dot) return KernelFamily::kDot;
  if (std::min(g.m, g.n) < 4) return KernelFamily::kFewRows;
  const int64_t products = g.m * g.n * g.k * g.batch * g.terms;
  if (products < kSmall) return KernelFamily::kSmallProduct;
  if (g.batch > 1)
    return products < kLarge ? KernelFamily::kBatchedProduct : KernelFamily::kLargeBatchedProduct;
  return products < kLarge ? KernelFamily::kProduct : KernelFamily::kLargeProduct;
}

KernelFamily attention_family_of(int64_t products) {
  return products < kLargeAttention ? KernelFamily::kAttention : KernelFamily::kLargeAttention;
}

KernelFamily family_of(const kernels::Product4& product) {
  const bool is_large = product.m >= kLargeRows4Bit;
  if (!product.transposed) return is_large ? KernelFamily::kLargeGradient4Bit : KernelFamily::kGradient4Bit;
  if (kernels::cpu::is_few_rows4(product)) return KernelFamily::kFewRows4Bit;
  return is_large ? KernelFamily::kLargeProduct4Bit : KernelFamily::kProduct4Bit;
}

KernelFamily family_of(ConvolutionPass pass, const ConvolutionKind& kind) {
  // oneDNN converts the layout of images whose channels are not last, and that of their results.
  const int64_t large = int64_t{1} << (kind.channels_last ? 23 : 25);
  const auto first = [&] {
    if (kind.groups == 1)
      return kind.products < large ? KernelFamily::kSmallConvolution : KernelFamily::kConvolution;
    if (kind.channels > 1 || kind.outputs > 1)
      return kind.channels_last ? KernelFamily::kGroupedConvolutionLast : KernelFamily::kGroupedConvolution;
    if (kind.channels_last) {
      if (kind.strided) return KernelFamily::kStridedDepthwiseLast;
      return kind.products < int64_t{1} << 22 ? KernelFamily::kDepthwiseLast
                                              : KernelFamily::kLargeDepthwiseLast;
    }
    return kind.strided ? KernelFamily::kStridedDepthwise : KernelFamily::kDepthwise;
  };
  return static_cast<KernelFamily>(static_cast<int>(first()) + static_cast<int>(pass));
}

int kind_of(KernelFamily family) {
  return (family >= KernelFamily::kConvolution) + (family >= KernelFamily::kLargeAttention) +
         (family >= KernelFamily::kGelu) + (family >= KernelFamily::kUnscale) +
         (family >= KernelFamily::kFewRows4Bit) + (family >= KernelFamily::kProductInt8);
}

FamilyGroup group_of(size_t family) {
  constexpr auto kFirstKind = static_cast<size_t>(KernelFamily::kConvolution);
  constexpr auto kAttention = static_cast<size_t>(KernelFamily::kLargeAttention);
  if (family < kFirstKind) return {0, kFirstKind};
  if (family < kAttention) {
    const size_t first = family - (family - kFirstKind) % 3;
    return {first, first + 3};
  }
  constexpr auto kUnscale = static_cast<size_t>(KernelFamily::kUnscale);
  constexpr auto kInt8 = static_cast<size_t>(KernelFamily::kProductInt8);
  if (family == kUnscale || family == kInt8) return {family, family + 1};
  if (family > kUnscale) return {kUnscale + 1, kInt8};
  constexpr auto kGelu = static_cast<size_t>(KernelFamily::kGelu);
  return family < kGelu ? FamilyGroup{kAttention, kGelu} : FamilyGroup{kGelu, kUnscale};
}

bool are_alike(size_t family, size_t other) {
  constexpr auto kFirst = static_cast<size_t>(KernelFamily::kConvolution);
  constexpr auto kEnd = static_cast<size_t>(KernelFamily::kLargeAttention);
  const auto is_4bit = [](size_t each) {
    return each >= static_cast<size_t>(KernelFamily::kFewRows4Bit) &&
           each < static_cast<size_t>(KernelFamily::kProductInt8);
  };
  if (is_4bit(family) || is_4bit(other)) return is_4bit(family) && is_4bit(other);
  if (family < kFirst || other < kFirst) return family < kFirst && other < kFirst;
  if (family >= kEnd || other >= kEnd)
    return std::min(family, other) == kEnd &&
           std::max(family, other) == static_cast<size_t>(KernelFamily::kAttention);
  return (family - kFirst) % 3 == (other - kFirst) % 3;
}

}  // namespace mantissa
