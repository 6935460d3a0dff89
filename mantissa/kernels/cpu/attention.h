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
  int64_t nr;  ///< parts of the queries begin and end at multiples of it, but for the last part's end
};

/// Best first; the last runs on any CPU.
const std::vector<AttentionBuild>& attention_builds();

/// Computes `g` with one build, which this CPU must be able to run: see Attention and AttentionPart.
///
/// Threads: at::get_num_threads() of them in one parallel region, or the calling one alone inside another
///          region or where the work would not pay for waking them. Results do not depend on their number.
/// Memory:  at most 0.6 MiB per thread for widths up to 1024, kept until the thread ends.
void attention(const Attention& g, const AttentionBuild& build);

/// The gradient likewise: see AttentionGradient.
///
/// Threads: as above; a head's keys and queries are shared out only where heads are too few, at 7 products in
///          place of 5.
/// Memory:  at most 0.9 MiB per thread for widths up to 1024 and 8 bytes for each element of one head's keys, whose
///          width counts up to the next multiple of NR; kept likewise.
void attention_gradient(const AttentionGradient& g, const AttentionBuild& build);

}  // namespace mantissa::kernels::cpu
