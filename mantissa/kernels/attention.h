#pragma once

#include <vector>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/cpu/attention.h"

namespace mantissa {

/// A build of the attention kernels inside this binary.
struct AttentionBuild {
  CpuTier tier;
  cpu::AttentionKernel* run;
  cpu::AttentionScratchSize* scratch_size;
  cpu::AttentionGradientKernel* run_gradient;
  cpu::AttentionGradientScratchSize* gradient_scratch_size;
  int64_t panel;  ///< parts of the queries that are not their last begin and end at multiples of this
};

/// Best first; the last runs on any CPU.
const std::vector<AttentionBuild>& attention_builds();

/// Computes `g` with the build that was chosen on this CPU: see cpu::Attention for shapes and numerics.
///
/// Threads: at::get_num_threads() of them in one parallel region, or the calling one alone inside another
///          region or where the work would not pay for waking them. Results do not depend on their number.
/// Memory:  at most 0.6 MiB per thread for widths up to 1024, kept until the thread ends.
void attention(const cpu::Attention& g);

/// The same with one build, which this CPU must be able to run.
void attention(const cpu::Attention& g, const AttentionBuild& build);

/// The gradient likewise: see cpu::AttentionGradient.
///
/// Threads: as above; a head's keys and queries are shared out only where heads are too few, at 7 products in
///          place of 5.
/// Memory:  at most 0.9 MiB per thread for widths up to 1024 and 8 bytes for each element of one head's keys,
///          whose width counts up to the next multiple of a panel; kept likewise.
void attention_gradient(const cpu::AttentionGradient& g);
void attention_gradient(const cpu::AttentionGradient& g, const AttentionBuild& build);

}  // namespace mantissa
