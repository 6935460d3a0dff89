#pragma once

// The interface of each tier's convolution kernels. This header follows the rules of element.h. gemm_kernel.h
// explains MR and NR.

#include <cstdint>

#include "mantissa/kernels/convolution.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"

namespace mantissa::kernels::cpu {

/// A convolution and its partition into blocks.
///
/// Numerics: a chain of float32 fused multiply-adds over the taps (the last dimension varies fastest), and
///           for each tap over the channels, block_channels channels at a time. The sums of such blocks are
///           added in order.
struct BlockedConvolution : Convolution {
  int64_t block_channels = 1;
  /// The size of a block: images, then the extents along the axes.
  int64_t block[4] = {1, 1, 1, 1};
};

/// The maximum number of phases (the product of the steps of `forward`) of a turned convolution.
constexpr int64_t kTurnedPhases = 64;

/// The results that a call computes: blocks [block_begin, block_end), where the width varies fastest, of the
/// channels [output_begin, output_end) of one group.
struct ConvolutionPart {
  int64_t group, block_begin, block_end, output_begin, output_end;
};

/// The maximum depth (taps times channels) of a chain of sums and of a micro-panel of the weight.
constexpr int64_t kConvolutionDepth = 1152;
/// The maximum number of results of a block, and of float32 values that it needs from the source (1 MiB).
constexpr int64_t kConvolutionPixels = 1024, kConvolutionSource = int64_t{1} << 18;
/// A weight of at most this many float32 values (1 MiB) is packed once for all blocks of a part. See
/// ConvolutionScratch::stays.
constexpr int64_t kConvolutionWeights = int64_t{1} << 18;
/// The number of results of a pixel, rounded up to NR, whose sums are kept until the next block of channels.
constexpr int64_t kConvolutionColumns = 256;

/// The scratch memory of one call, 64-byte aligned.
struct ConvolutionScratch {
  float* source;       ///< source of one block, plus kGemmSlack
  float* weights;      ///< weights of the part if they are kept, else of one micro-panel
  bool stays;          ///< whether a part's weights are packed once for all its blocks
  float* sums;         ///< kConvolutionPixels, rounded up to 48, x the columns with waiting sums, if any
  int64_t* source_at;  ///< kConvolutionPixels + 48 positions of a result's first tap
  int64_t* out_at;     ///< kConvolutionPixels + 48 positions of a result
};

using ConvolutionKernel = void(const BlockedConvolution&, const ConvolutionPart&, const ConvolutionScratch&);

/// A weight's gradient and the partition of its results into blocks.
///
/// Numerics: a chain of float32 fused multiply-adds over the results of a block, with the last axis fastest;
///           the sums of such blocks are added in order. Blocks depend only on shape and layout.
struct BlockedConvolutionWeight : ConvolutionWeight {
  int64_t block[4] = {1, 1, 1, 1};
};

/// The weights of one group that a call computes, and the blocks that it sums. A call writes the weights only
/// if it has all blocks, or if it has none and its scratch holds the finished sums.
struct ConvolutionWeightPart {
  int64_t group, channel_begin, channel_end, output_begin, output_end;
  int64_t block_begin, block_end;
  bool writes;
};

/// The number of results of a block: their source and gradient should stay in the L1 cache for a micro-tile.
constexpr int64_t kConvolutionChain = 256;
/// The weights of a part in float32 (1 MiB), unless one micro-tile has more, and the part's channels of the
/// gradient.
constexpr int64_t kConvolutionSums = int64_t{1} << 18, kConvolutionOutputs = 512;

/// The number of float32 sums of blocks that threads share at one time (8 MiB).
constexpr int64_t kSharedSums = int64_t{1} << 21;

struct ConvolutionWeightScratch {
  float* source;       ///< source of one block, plus kGemmSlack
  float* gradient;     ///< kConvolutionChain x the part's outputs, rounded up to MR and NR, plus kGemmSlack
  float* sums;         ///< outputs x runs of taps and channels, rounded up to NR,
                       ///< plus kGemmSlack: a tap's channels are read as whole vectors
  int64_t block_sums;  ///< 0: the blocks' sums are added up. Otherwise each block has its own sums,
                       ///< at this distance from the previous ones, and the weights are not written
};

using ConvolutionWeightKernel = void(const BlockedConvolutionWeight&, const ConvolutionWeightPart&,
                                     const ConvolutionWeightScratch&);

/// Adds from[i], then from[stride + i] and so on to to[i], for `blocks` blocks in order and `count` sums.
/// Without `accumulate` the first block's sums are copied. `count` is a multiple of 16.
using AddBlockSums = void(const float* from, int64_t stride, int64_t blocks, int64_t count, bool accumulate,
                          float* to);

/// The number of channels in the windows of depthwise convolutions. In a depthwise convolution, channel o of the
/// results depends on channel o of the source only, so weight[o, t] has no c. `groups` and `channels` are 1, and
/// the part's group and channels are ignored. Everything else, including the numerics, is as above.
constexpr int64_t kConvolutionLanes = 32;

/// The group sizes (channels, and as many results) for which several groups share one vector. `groups` is 1,
/// `channels` is the size of a group, `outputs` counts all results, and [output_begin, output_end) is a part
/// of them in whole vectors. A weight's group_stride is the distance of groups. The channels of the results
/// are adjacent; those of the source are evenly spaced. Windows have kConvolutionLanes channels.
constexpr int64_t kConvolutionGroups[] = {2, 4};

/// The limits of convolve_few(), whose vectors hold adjacent pixels. It computes convolutions with few results
/// per pixel (at most NR / 4), or with sums of at most kFewSteps products. Every axis with more than one result
/// has step 1. The last axis has at least kFewWidth results and reads at most twice as many positions. There is
/// at least one tap. The numerics are as above. The sums of each result are kFewPitch apart.
constexpr int64_t kFewWidth = 8, kFewSteps = 32;
constexpr int64_t kFewPitch = 2 * kConvolutionPixels + 16 * kConvolutionPixels / kFewWidth + 16;
/// The room past the end of each plane of a window: see plane_of().
constexpr int64_t kFewPlaneEnd = 48;

namespace generic {  // the reference implementation
ConvolutionKernel convolve, convolve_depthwise;
ConvolutionWeightKernel convolve_weight, convolve_depthwise_weight;
}  // namespace generic
namespace avx2 {
ConvolutionKernel convolve, convolve_depthwise, convolve_groups, convolve_few;
ConvolutionWeightKernel convolve_weight, convolve_depthwise_weight, convolve_groups_weight;
AddBlockSums add_block_sums;
}  // namespace avx2
namespace avx512 {
ConvolutionKernel convolve, convolve_depthwise, convolve_groups, convolve_few;
ConvolutionWeightKernel convolve_weight, convolve_depthwise_weight, convolve_groups_weight;
AddBlockSums add_block_sums;
}  // namespace avx512

}  // namespace mantissa::kernels::cpu
