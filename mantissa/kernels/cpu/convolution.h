#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/convolution_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the convolution kernels inside this binary.
struct ConvolutionBuild {
  CpuTier tier;
  ConvolutionKernel *convolve, *convolve_depthwise;
  ConvolutionWeightKernel *convolve_weight, *convolve_depthwise_weight;
  ConvolutionKernel* convolve_groups;  ///< null: groups are computed one by one
  ConvolutionWeightKernel* convolve_groups_weight;
  ConvolutionKernel* convolve_few;  ///< null: few results are computed like many
  AddBlockSums* add_block_sums;     ///< null: threads do not share the blocks of a weight's gradient
  int64_t mr, nr;                   ///< parts of a group's channels begin at multiples of these
};

/// Best first; the last runs on any CPU.
const std::vector<ConvolutionBuild>& convolution_builds();

/// Whether `c` is within what the scratch takes: kernels of up to kConvolutionDepth taps that reach over
/// no more of the source than kConvolutionSource.
bool is_computable(const Convolution& c);
bool is_computable(const ConvolutionWeight& c);

/// Computes convolutions that do not depend on each other, in one parallel region, with one build, which this CPU must
/// be able to run: see Convolution and BlockedConvolution, whose blocks are chosen here.
///
/// Threads: at::get_num_threads() of them, or the calling one alone inside another region or where the work
///          would not pay for waking them. Results do not depend on their number.
/// Memory:  at most 3.1 MiB per thread, kept until the thread ends.
/// Errors:  c10::Error unless is_computable().
void convolution(const std::vector<Convolution>& convolutions, const ConvolutionBuild& build);

/// The gradient of a weight: see ConvolutionWeight and BlockedConvolutionWeight, whose blocks are chosen here.
///
/// Threads, Errors: as convolution().
/// Memory:  at most 2.6 MiB per thread, for kernels of more than 256 taps up to 6.3 MiB; of the calling thread
///          up to 8 MiB more where threads share blocks.
void convolution_weight(const ConvolutionWeight& c, const ConvolutionBuild& build);

/// The adjoint of `c`, which is the gradient of its source and a transposed convolution: c.source is now
/// where the gradient of c's results is read, c.out where that of c's source is written; axes, channels,
/// outputs and weight are still those of c. One convolution for each remainder of a position by the axes'
/// steps: there every result has the same taps. A depthwise one is a single pass: see
/// Convolution::is_turned.
std::vector<Convolution> adjoint(const Convolution& c);

}  // namespace mantissa::kernels::cpu
