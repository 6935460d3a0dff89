#include "mantissa/kernels/cpu/blockwise.h"

#include <algorithm>

#include "mantissa/kernels/cpu/builds_internal.h"
#include "mantissa/kernels/cpu/parts_internal.h"

namespace mantissa::kernels::cpu {
namespace {

constexpr int64_t kBlocksPerTask = 64;  // blocks: about 20 microseconds of work

const BlockwiseBuild& best_build() {
  static const BlockwiseBuild& best = build_for(blockwise_builds(), cpu_features());
  return best;
}

int64_t blocks_of(int64_t count) { return divide_up(count, kStateBlock); }

}  // namespace

const std::vector<BlockwiseBuild>& blockwise_builds() {
  static const std::vector<BlockwiseBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, avx512::quantize_blocks, avx512::dequantize_blocks, avx512::update_blocks},
    {CpuTier::kAvx2, avx2::quantize_blocks, avx2::dequantize_blocks, avx2::update_blocks},
#endif
    {CpuTier::kGeneric, generic::quantize_blocks, generic::dequantize_blocks, generic::update_blocks}
  };
  return builds;
}

void quantize_blockwise(const QuantizeBlockwise& problem, const BlockwiseBuild& build) {
  at::parallel_for(0, blocks_of(problem.count), kBlocksPerTask,
                   [&](int64_t begin, int64_t end) { build.quantize(problem, begin, end); });
}

void dequantize_blockwise(const DequantizeBlockwise& problem, const BlockwiseBuild& build) {
  at::parallel_for(0, blocks_of(problem.count), kBlocksPerTask,
                   [&](int64_t begin, int64_t end) { build.dequantize(problem, begin, end); });
}

void update_blockwise(const std::vector<BlockwiseUpdate>& problems, const BlockwiseBuild& build) {
  std::vector<int64_t> begins;  // for each problem, the index of its first block among all blocks
  begins.reserve(problems.size());
  int64_t total = 0;
  for (const BlockwiseUpdate& problem : problems) {
    begins.push_back(total);
    total += blocks_of(problem.count);
  }
  at::parallel_for(0, total, kBlocksPerTask, [&](int64_t begin, int64_t end) {
    auto i = static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), begin) - begins.begin()) - 1;
    for (; i < problems.size() && begins[i] < end; ++i) {
      const int64_t first = std::max(begin, begins[i]) - begins[i];
      const int64_t last = std::min(end - begins[i], blocks_of(problems[i].count));
      build.update(problems[i], first, last);
    }
  });
}

void quantize_blockwise(const QuantizeBlockwise& problem) { quantize_blockwise(problem, best_build()); }
void dequantize_blockwise(const DequantizeBlockwise& problem) { dequantize_blockwise(problem, best_build()); }
void update_blockwise(const std::vector<BlockwiseUpdate>& problems) {
  update_blockwise(problems, best_build());
}

}  // namespace mantissa::kernels::cpu
