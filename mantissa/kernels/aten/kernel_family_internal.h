#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mantissa/kernels/gemm.h"
#include "mantissa/kernels/quantized4.h"

namespace mantissa {

/// Families of operations with similar relative speeds: one kernel is chosen for a whole family in one dtype.
enum class KernelFamily : uint8_t {
  kLargeProduct,         ///< matrix products of at least 2^24 multiplications
  kProduct,              ///< those of at least 96^3
  kSmallProduct,         ///< smaller matrix products
  kFewRows,              ///< products with up to three rows or columns
  kLargeBatchedProduct,  ///< batches of matrices, at least 2^24 multiplications
  kBatchedProduct,       ///< those of at least 96^3
  kDot,                  ///< dot product of two vectors
  kConvolution,          ///< at least 2^25 multiplications (channels last: 2^23); each kind has three passes
  kConvolutionByInput,
  kConvolutionByWeight,
  kSmallConvolution,  ///< smaller ones
  kSmallConvolutionByInput,
  kSmallConvolutionByWeight,
  kGroupedConvolution,  ///< groups of several channels
  kGroupedConvolutionByInput,
  kGroupedConvolutionByWeight,
  kGroupedConvolutionLast,  ///< with channels last
  kGroupedConvolutionLastByInput,
  kGroupedConvolutionLastByWeight,
  kDepthwise,  ///< groups of one channel
  kDepthwiseByInput,
  kDepthwiseByWeight,
  kStridedDepthwise,
  kStridedDepthwiseByInput,
  kStridedDepthwiseByWeight,
  kDepthwiseLast,  ///< with channels last, below 2^22 multiplications
  kDepthwiseLastByInput,
  kDepthwiseLastByWeight,
  kLargeDepthwiseLast,  ///< at least 2^22 multiplications, with a step of 1
  kLargeDepthwiseLastByInput,
  kLargeDepthwiseLastByWeight,
  kStridedDepthwiseLast,
  kStridedDepthwiseLastByInput,
  kStridedDepthwiseLastByWeight,
  kLargeAttention,  ///< forward, at least 2^26 multiplications
  kAttention,       ///< smaller ones
  kAttentionBackward,
  kGelu,
  kGeluBackward,
  kUnscale,
  kFewRows4Bit,  ///< products of up to three rows with a weight in 4 bits; from here on, float32 has choices, too
  kProduct4Bit,        ///< more rows with a weight in 4 bits
  kLargeProduct4Bit,   ///< at least 96 rows
  kGradient4Bit,       ///< with the weight as it is, not transposed: gradients of a layer's input
  kLargeGradient4Bit,  ///< at least 96 rows
  kProductInt8         ///< products of 8-bit integers, by the dtype of the result
};
constexpr int kKernelFamilies = static_cast<int>(KernelFamily::kProductInt8) + 1;

/// Returns the names of the families: "product", "convolution_by_weight", "attention", ...
const std::vector<std::string>& family_names();

KernelFamily family_of(const kernels::Gemm& g, bool is_dot = false);
KernelFamily family_of(const kernels::Product4& product);

/// Returns the family of attention's forward pass by its number of multiplications.
KernelFamily attention_family_of(int64_t products);

enum class ConvolutionPass : uint8_t { kForward, kByInput, kByWeight };

/// The properties that a convolution's time depends on, apart from its dtype.
struct ConvolutionKind {
  int64_t groups = 1, channels = 1, outputs = 1;  ///< of each group
  int64_t products = 0;                           ///< multiplications of the whole convolution
  bool strided = false;                           ///< along any axis
  bool channels_last = false;
};
KernelFamily family_of(ConvolutionPass pass, const ConvolutionKind& kind);

/// Returns the kind of operation: products, convolutions, attention, GELU, unscaling, products with weights in 4 bits or in
/// 8 bits. A small call of one
/// family may belong to another family of the same kind.
int kind_of(KernelFamily family);

/// The families that a program needs together, [first, end). They are measured on one thread.
struct FamilyGroup {
  size_t first, end;
};
FamilyGroup group_of(size_t family);

/// True if the times of one family say something about the other: both are products, products with weights in 4 bits, the
/// same pass of convolutions, or the forward pass of attention.
bool are_alike(size_t family, size_t other);

}  // namespace mantissa
