#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mantissa/kernels/gemm.h"

namespace mantissa {

/// Operations whose times rise and fall together: one kernel is chosen for all of a family in one dtype.
enum class KernelFamily : uint8_t {
  kProduct,         ///< of matrices, from 96^3 multiplications on
  kSmallProduct,    ///< of matrices, below
  kFewRows,         ///< up to three rows or columns
  kBatchedProduct,  ///< a batch of matrices, from 96^3 multiplications on
  kDot,             ///< of two vectors
  kConvolution,  ///< from 2^25 multiplications on, 2^23 with channels last; the first of a pass for each kind
  kConvolutionByInput,
  kConvolutionByWeight,
  kSmallConvolution,  ///< below
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
  kLargeDepthwiseLast,  ///< from 2^22 on, with a step of 1
  kLargeDepthwiseLastByInput,
  kLargeDepthwiseLastByWeight,
  kStridedDepthwiseLast,
  kStridedDepthwiseLastByInput,
  kStridedDepthwiseLastByWeight,
  kAttention,
  kAttentionBackward,
  kGelu,
  kGeluBackward,
  kUnscale
};
constexpr int kKernelFamilies = static_cast<int>(KernelFamily::kUnscale) + 1;

/// "product", "convolution_by_weight", "attention", ...
const std::vector<std::string>& family_names();

KernelFamily family_of(const kernels::Gemm& g, bool is_dot = false);

enum class ConvolutionPass : uint8_t { kForward, kByInput, kByWeight };

/// The properties on which a convolution's time depends, beside its dtype.
struct ConvolutionKind {
  int64_t groups = 1, channels = 1, outputs = 1;  ///< of each group
  int64_t products = 0;                           ///< multiplications of the whole
  bool strided = false;                           ///< along any axis
  bool channels_last = false;
};
KernelFamily family_of(ConvolutionPass pass, const ConvolutionKind& kind);

/// Products, convolutions, attention, GELU, unscaling: a small call of one family may belong to another one of its
/// kind.
int kind_of(KernelFamily family);

/// The families that a program needs together, [first, end): they are measured on one thread.
struct FamilyGroup {
  size_t first, end;
};
FamilyGroup group_of(size_t family);

/// Whether the times of one family say something about the other: products, or the same pass of convolutions.
bool are_alike(size_t family, size_t other);

}  // namespace mantissa
