#pragma once

// What each tier's convolution kernels implement; on the terms of element.h. MR and NR are those of gemm_kernel.h.

#include <cstdint>

#include "mantissa/kernels/convolution.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"

namespace mantissa::kernels::cpu {

/// A convolution, and how it is cut into blocks.
///
/// Numerics: a chain of float32 fused multiply-adds over the taps, the last dimension fastest, and for each tap over
///           the channels, for block_channels channels at a time; the sums of such blocks are added in order.
struct BlockedConvolution : Convolution {
  int64_t block_channels = 1;
  /// The size of a block: images, then extents along the axes.
  int64_t block[4] = {1, 1, 1, 1};
};

/// A turned convolution has at most this many phases, the product of forward's steps.
constexpr int64_t kTurnedPhases = 64;

/// The results that a call computes: blocks [block_begin, block_end), counted with the width fastest, of one
/// group's channels [output_begin, output_end).
struct ConvolutionPart {
  int64_t group, block_begin, block_end, output_begin, output_end;
};

/// The greatest depth (taps times channels) of a chain of sums and of a micro-panel of the weight.
constexpr int64_t kConvolutionDepth = 1152;
/// A block's results, and the float32 values that it needs from the source (1 MiB).
constexpr int64_t kConvolutionPixels = 1024, kConvolutionSource = int64_t{1} << 18;
/// A weight of at most this many float32 values (1 MiB) is packed once for all blocks of a part. See
/// ConvolutionScratch::stays.
constexpr int64_t kConvolutionWeights = int64_t{1} << 18;
/// How many results of a pixel keep their sums until the next block of channels, rounded up to NR.
constexpr int64_t kConvolutionColumns = 256;

/// Working memory of one call; 64-byte aligned.
struct ConvolutionScratch {
  float* source;       ///< of one block, and kGemmSlack
  float* weights;      ///< of the part, if they stay, else of one micro-panel
  bool stays;          ///< whether a part's weights are packed once for all its blocks
  float* sums;         ///< kConvolutionPixels, rounded up to 48, x the columns that wait, if there are any
  int64_t* source_at;  ///< kConvolutionPixels + 48: where a result's first tap lies
  int64_t* out_at;     ///< likewise: where the result lies
};

using ConvolutionKernel = void(const BlockedConvolution&, const ConvolutionPart&, const ConvolutionScratch&);

/// A weight's gradient, and how its results are cut into blocks.
///
/// Numerics: a chain of float32 fused multiply-adds over the results of a block, the last axis fastest; the sums of
///           such blocks are added in order. Blocks depend on shape and layout alone.
struct BlockedConvolutionWeight : ConvolutionWeight {
  int64_t block[4] = {1, 1, 1, 1};
};

/// The weights that a call computes, of one group, and the blocks whose sums it makes. Only a call with all
/// blocks writes the weights, or one with none, whose scratch has the finished sums.
struct ConvolutionWeightPart {
  int64_t group, channel_begin, channel_end, output_begin, output_end;
  int64_t block_begin, block_end;
  bool writes;
};

/// A block's results: their source and gradient shall stay in the first cache level for a micro-tile.
constexpr int64_t kConvolutionChain = 256;
/// A part's weights in float32 (1 MiB), unless one micro-tile has more, and its channels of the gradient.
constexpr int64_t kConvolutionSums = int64_t{1} << 18, kConvolutionOutputs = 512;

/// The sums of blocks that threads share, at a time (8 MiB), in float32.
constexpr int64_t kSharedSums = int64_t{1} << 21;

struct ConvolutionWeightScratch {
  float* source;       ///< of one block, and kGemmSlack
  float* gradient;     ///< kConvolutionChain x the part's outputs, rounded up to MR and NR, and kGemmSlack
  float* sums;         ///< the outputs x the runs of taps and channels, rounded up to NR, and
                       ///< kGemmSlack: a tap's channels are read as whole vectors
  int64_t block_sums;  ///< 0: the blocks' sums are added up; else each has its own, so far from the last, and
                       ///< the weights are not written
};

using ConvolutionWeightKernel = void(const BlockedConvolutionWeight&, const ConvolutionWeightPart&,
                                     const ConvolutionWeightScratch&);

/// to[i] += from[i], then from[stride + i] and so on, of `blocks` blocks in order, for `count` sums; not
/// `accumulate`: the first block's are taken as they are. `count` is a multiple of 16.
using AddBlockSums = void(const float* from, int64_t stride, int64_t blocks, int64_t count, bool accumulate,
                          float* to);

/// Depthwise: channel o of the results comes from channel o of the source alone, so that weight[o, t] has no
/// c. `groups` and `channels` are 1, the part's group and channels are not looked at. Otherwise as above,
/// also in numerics. Windows are of kConvolutionLanes channels.
constexpr int64_t kConvolutionLanes = 32;

/// The sizes of a group, in channels and in results, that are computed with several groups in one vector.
/// `groups` is 1, `channels` the size of a group, `outputs` all results, [output_begin, output_end) a part of
/// them of whole vectors; a weight's group_stride is from one group to the next. Channels of the results are
/// adjacent, those of the source evenly apart. Windows are of kConvolutionLanes channels.
constexpr int64_t kConvolutionGroups[] = {2, 4};

/// Few results for each pixel, at most NR / 4, or short sums, of at most kFewSteps
/// products: vectors of adjacent pixels. Every axis with more than one result has step 1. The last one has at
/// least kFewWidth results and reads at most twice as many positions. There is at least one tap. Also in
/// numerics as above. The sums of each result are kFewPitch apart.
constexpr int64_t kFewWidth = 8, kFewSteps = 32;
constexpr int64_t kFewPitch = 2 * kConvolutionPixels + 16 * kConvolutionPixels / kFewWidth + 16;
/// The room that the planes of a window have past their ends: see plane_of().
constexpr int64_t kFewPlaneEnd = 48;

namespace generic {  // the definition of correct
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
