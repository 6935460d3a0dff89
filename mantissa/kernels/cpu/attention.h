#pragma once

#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/attention_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the attention kernels inside this binary.
struct AttentionBuild {
  CpuTier tier;
  AttentionKernel* run;
  AttentionScratchSize* scratch_size;
  AttentionGradientKernel* run_gradient;
  AttentionGradientScratchSize* gradient_scratch_size;
  int64_t nr;  ///< a part of the queries begins at a multiple of it, and ends at one unless it is the last
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<AttentionBuild>& attention_builds();

/// Computes `g` with one build, which this CPU must be able to run: see Attention and AttentionPart.
///
/// Threads: at::get_num_threads() threads in one parallel region. The calling thread computes alone inside
///          another parallel region, or if the work would not pay for waking others. Results do not depend on
///          the number of threads.
/// Memory:  at most 0.6 MiB per thread for widths up to 1024, kept until the thread ends.
void attention(const Attention& g, const AttentionBuild& build);

/// Computes the gradient with one build: see AttentionGradient.
///
/// Threads: as attention(). The keys and queries of a head are split only if there are too few heads; this
///          takes 7 products instead of 5.
/// Memory:  for widths up to 1024, at most 0.9 MiB per thread, plus 8 bytes for each element of one head's
///          keys, with the width rounded up to a multiple of NR. It is kept until the thread ends.
void attention_gradient(const AttentionGradient& g, const AttentionBuild& build);

}  // namespace mantissa::kernels::cpu
