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
  ConvolutionKernel* convolve_few;  ///< null: convolutions with few results use `convolve`
  AddBlockSums* add_block_sums;     ///< null: threads do not share the blocks of a weight's gradient
  int64_t mr, nr;                   ///< parts of a group's channels begin at multiples of these
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<ConvolutionBuild>& convolution_builds();

/// True if the scratch memory suffices for `c`: its kernels have at most kConvolutionDepth taps and span no
/// more of the source than kConvolutionSource.
bool is_computable(const Convolution& c);
bool is_computable(const ConvolutionWeight& c);

/// Computes independent convolutions in one parallel region with one build, which this CPU must be able to
/// run: see Convolution and BlockedConvolution. The blocks are chosen here.
///
/// Threads: at::get_num_threads() threads. The calling thread computes alone inside another parallel region,
///          or if the work would not pay for waking others. Results do not depend on the number of threads.
/// Memory:  at most 3.1 MiB per thread, kept until the thread ends.
/// Errors:  c10::Error unless is_computable().
void convolution(const std::vector<Convolution>& convolutions, const ConvolutionBuild& build);

/// Computes the gradient of a weight: see ConvolutionWeight and BlockedConvolutionWeight. The blocks are
/// chosen here.
///
/// Threads: as convolution().
/// Memory:  at most 2.6 MiB per thread, or 6.3 MiB for kernels of more than 256 taps. The calling thread
///          needs up to 8 MiB more where threads share blocks.
/// Errors:  as convolution().
void convolution_weight(const ConvolutionWeight& c, const ConvolutionBuild& build);

/// Returns the adjoint of `c`, which computes the gradient of its source, or a transposed convolution.
/// c.source must already be the gradient of c's results, which is read, and c.out the gradient of its source,
/// which is written; axes, channels, outputs and weight are those of the original. The result has one
/// convolution for each remainder of a position by the axes' steps, because all its results have the same
/// taps. A depthwise adjoint is a single pass: see Convolution::is_turned.
std::vector<Convolution> adjoint(const Convolution& c);

}  // namespace mantissa::kernels::cpu
