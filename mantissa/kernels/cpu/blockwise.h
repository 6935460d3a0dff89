#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/blockwise_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the block-wise kernels inside this binary.
struct BlockwiseBuild {
  CpuTier tier;
  QuantizeBlocks* quantize;
  DequantizeBlocks* dequantize;
  UpdateBlocks* update;
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<BlockwiseBuild>& blockwise_builds();

/// These compute in parallel with one build, which this CPU must be able to run; without a build, with the
/// best one.
///
/// Threads: up to at::get_num_threads(). Results do not depend on their number.
void quantize_blockwise(const QuantizeBlockwise& problem, const BlockwiseBuild& build);
void dequantize_blockwise(const DequantizeBlockwise& problem, const BlockwiseBuild& build);
/// All problems share one parallel region, so many small ones cost little more than one large one. No two of
/// them may share memory.
void update_blockwise(const std::vector<BlockwiseUpdate>& problems, const BlockwiseBuild& build);
void quantize_blockwise(const QuantizeBlockwise& problem);
void dequantize_blockwise(const DequantizeBlockwise& problem);
void update_blockwise(const std::vector<BlockwiseUpdate>& problems);

}  // namespace mantissa::kernels::cpu
