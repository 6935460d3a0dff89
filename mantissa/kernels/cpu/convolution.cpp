#include "mantissa/kernels/cpu/convolution.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/kernels/cpu/convolution_shape_internal.h"
#include "mantissa/kernels/cpu/parts_internal.h"
#include "mantissa/kernels/cpu/scratch_internal.h"

namespace mantissa::kernels::cpu {
namespace {

/// Returns the number of channels whose taps form one chain. It depends on the shape alone.
int64_t block_channels(const Convolution& c) {
  const int64_t most = std::max<int64_t>(1, kConvolutionDepth / std::max<int64_t>(1, taps_of(c)));
  return std::min(c.channels, most < 16 ? most : most / 16 * 16);
}

/// Joins rows that are contiguous in source and results into one row.
void join_rows(Convolution& c) {
  for (const int a : {1, 0}) {
    const Axis &outer = c.axes[a], &inner = c.axes[2];
    const auto is_plain = [](const Axis& axis) {
      return axis.taps == 1 && axis.step == 1 && axis.origin == 0 && axis.size == axis.out;
    };
    if (!is_plain(outer) || !is_plain(inner)) break;
    if (outer.out > 1 && (c.source.strides[a] != inner.out * c.source.strides[2] ||
                          c.out.strides[a] != inner.out * c.out.strides[2]))
      break;
    c.axes[2].size = c.axes[2].out = outer.out * inner.out;
    c.axes[a] = {};
  }
}

int64_t result_count(const Convolution& c) { return pixel_count(c) * c.groups * c.outputs; }

int64_t product_count(const Convolution& c) {
  return result_count(c) * c.channels * std::max<int64_t>(1, taps_of(c));
}

/// Returns the approximate cost: the multiplications, plus rounding and writing each result.
double work_of(const Convolution& c) {
  return static_cast<double>(result_count(c)) * static_cast<double>(c.channels * taps_of(c) + 8);
}

/// Whether convolve_few() computes `c`.
bool has_few_results(const Convolution& c, const ConvolutionBuild& build) {
  const Axis& last = c.axes[2];
  const bool steps = std::any_of(std::begin(c.axes), std::end(c.axes),
                                 [](const Axis& axis) { return axis.step != 1 && axis.out > 1; });
  if (build.convolve_few == nullptr || steps || taps_of(c) == 0 || last.out < kFewWidth) return false;
  // What matters is the share of a vector's lanes that does useful work. With pixels as lanes, it is the
  // share of the pixels among the positions of a row; with results as lanes, it is the share of the results.
  // Both kernels take equally long where the first share is 1.75 times the second.
  const int64_t lanes = build.nr / 2, positions = span(last, last.out);
  if (positions > 2 * last.out) return false;
  if (c.outputs <= lanes / 2) return 4 * last.out * lanes >= 7 * positions * c.outputs;
  // More results also qualify if each one is a short sum, because reordering them from channels to pixels
  // would cost as much as the sum itself.
  return c.channels * taps_of(c) <= kFewSteps && c.source.strides[2] == 1 && c.out.strides[2] == 1 &&
         4 * last.out >= 3 * positions;
}

/// A convolution, its kernel, and its tasks: blocks vary fastest, then ranges of channels, then groups.
struct Pass {
  BlockedConvolution c;
  ConvolutionKernel* kernel;
  int64_t window_channels, blocks, ranges, outputs, tasks;
  bool has_few_results;
};

/// Returns the convolution in the form in which it is computed; it is not yet cut into tasks.
Pass pass_of(const Convolution& c, const ConvolutionBuild& build) {
  Pass pass{{c}, build.convolve, 0, 0, 1, 0, 0, false};
  if (is_depthwise(c)) {
    make_channels_of_groups(pass.c.source);
    make_channels_of_groups(pass.c.out);
    pass.c.weight.image_stride = c.weight.group_stride;
    std::swap(pass.c.groups, pass.c.outputs);
    pass.kernel = build.convolve_depthwise;
    pass.window_channels = kConvolutionLanes;
  } else if (has_rows_of_groups(c, c.out, build)) {
    join_groups(pass.c);
    pass.kernel = build.convolve_groups;
    pass.window_channels = kConvolutionLanes;
  }
  if (!pass.c.is_turned) {
    drop_gaps(pass.c);
    join_rows(pass.c);
  }
  pass.c.block_channels = block_channels(pass.c);
  pass.has_few_results = pass.kernel == build.convolve && has_few_results(pass.c, build);
  if (pass.has_few_results) pass.kernel = build.convolve_few;
  pass.window_channels = std::max(pass.window_channels, pass.c.block_channels);
  return pass;
}

/// True if threads share the channels of a group, so that each one widens the source, rather than its pixels,
/// so that each one packs the weight. This pays if the weight is larger and the threads get equal shares.
bool is_cut_by_outputs(const Pass& pass, const ConvolutionBuild& build, int64_t threads) {
  const BlockedConvolution& c = pass.c;
  const int64_t tiles = divide_up(c.outputs, build.nr);
  return pass.kernel == build.convolve && c.outputs * taps_of(c) > pixel_count(c) &&
         (tiles % threads == 0 || tiles >= 8 * threads);
}

void cut(Pass& pass, const ConvolutionBuild& build, int64_t threads) {
  BlockedConvolution& c = pass.c;
  const bool by_outputs = is_cut_by_outputs(pass, build, threads);
  // Makes enough blocks for all threads.
  const int64_t share = divide_up(pixel_count(c) * c.groups, by_outputs ? 1 : threads);
  choose_blocks(c, std::clamp<int64_t>(share, 48, kConvolutionPixels),
                kConvolutionSource / pass.window_channels);
  pass.blocks = block_count(c);
  pass.outputs = c.outputs;
  const int64_t parts = by_outputs ? c.groups : pass.blocks * c.groups;
  if (parts % threads != 0 && parts < 8 * threads) {
    const int64_t wanted = threads / std::gcd(threads, parts);
    pass.outputs = round_up(divide_up(c.outputs, wanted), build.nr);
    pass.ranges = divide_up(c.outputs, pass.outputs);
  }
  pass.tasks = pass.blocks * c.groups * pass.ranges;
}

/// Returns this thread's working memory.
ConvolutionScratch scratch_for(const Pass& pass, const ConvolutionBuild& build) {
  const BlockedConvolution& c = pass.c;
  const int64_t columns = round_up(std::min(c.outputs, pass.outputs), build.nr);
  // The panels of a turned convolution hold the taps of the convolution whose adjoint it is; its own axes
  // describe what a block reads.
  const int64_t taps = c.is_turned ? taps_of(c.forward) : taps_of(c.axes);
  const int64_t all = columns * c.channels * taps;
  const int64_t panel = build.nr * c.block_channels * taps;
  // The largest part decides for all parts, because the last one may be smaller.
  const bool stays = all <= kConvolutionWeights;
  const auto line = [](int64_t floats) { return round_up(floats, 16); };
  const int64_t source = line((window_pixels(c.axes, c.block) + (pass.has_few_results ? kFewPlaneEnd : 0)) *
                                  pass.window_channels +
                              kGemmSlack);
  // Few results have narrower panels, which are packed like wide ones.
  const int64_t weights = line((stays ? all + (pass.has_few_results ? panel : 0) : panel) + kGemmSlack);
  const int64_t pixels = kConvolutionPixels + 48;
  const int64_t sums = pass.has_few_results            ? std::min(c.outputs, build.nr / 4) * kFewPitch
                       : c.block_channels < c.channels ? pixels * std::min(columns, kConvolutionColumns)
                                                       : 0;
  constexpr int64_t kFloats = sizeof(int64_t) / sizeof(float);
  float* const memory = thread_scratch(source + weights + sums + 2 * pixels * kFloats);
  auto* const tables = reinterpret_cast<int64_t*>(memory + source + weights + sums);
  return {memory, memory + source, stays, memory + source + weights, tables, tables + pixels};
}

/// Runs the tasks [begin, end) of one convolution.
void run(const Pass& pass, const ConvolutionBuild& build, int64_t begin, int64_t end) {
  const ConvolutionScratch scratch = scratch_for(pass, build);
  while (begin < end) {
    const int64_t block = begin % pass.blocks, range = begin / pass.blocks % pass.ranges;
    const int64_t blocks = std::min(pass.blocks - block, end - begin);
    pass.kernel(pass.c,
                {begin / (pass.blocks * pass.ranges), block, block + blocks, range * pass.outputs,
                 std::min(pass.c.outputs, (range + 1) * pass.outputs)},
                scratch);
    begin += blocks;
  }
}

}  // namespace

const std::vector<ConvolutionBuild>& convolution_builds() {
  static const std::vector<ConvolutionBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, avx512::convolve, avx512::convolve_depthwise, avx512::convolve_weight,
     avx512::convolve_depthwise_weight, avx512::convolve_groups, avx512::convolve_groups_weight,
     avx512::convolve_few, avx512::add_block_sums, 12, 32},
    {CpuTier::kAvx2, avx2::convolve, avx2::convolve_depthwise, avx2::convolve_weight,
     avx2::convolve_depthwise_weight, avx2::convolve_groups, avx2::convolve_groups_weight, avx2::convolve_few,
     avx2::add_block_sums, 6, 16},
#endif
    {CpuTier::kGeneric, generic::convolve, generic::convolve_depthwise, generic::convolve_weight,
     generic::convolve_depthwise_weight, nullptr, nullptr, nullptr, nullptr, 1, 1}
  };
  return builds;
}

bool is_computable(const Convolution& c) {
  return is_within(c, kConvolutionSource / (is_depthwise(c) ? kConvolutionLanes : block_channels(c)));
}

void convolution(const std::vector<Convolution>& convolutions, const ConvolutionBuild& build) {
  int64_t products = 0;
  double work = 0;
  std::vector<Pass> passes;
  for (const Convolution& c : convolutions) {
    TORCH_CHECK(is_computable(c), "convolution: a kernel of ", taps_of(c), " taps reaches over too much of ",
                "the source for the scratch; check is_computable() first");
    passes.push_back(pass_of(c, build));
    products += product_count(c);
    work += work_of(c);
  }
  const int64_t threads = threads_for(products);
  for (Pass& pass : passes) cut(pass, build, threads);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    // Each thread gets an equal share of the work, not of the tasks: the tasks of a strided gradient have
    // one, two or four taps.
    const auto share = [&](int64_t thread) {
      return work * static_cast<double>(thread) / static_cast<double>(threads);
    };
    double before = 0;
    for (const Pass& pass : passes) {
      const double all = work_of(pass.c);
      const auto task_at = [&](int64_t thread) {
        if (thread == threads) return pass.tasks;
        const double done = std::clamp((share(thread) - before) / all, 0.0, 1.0);
        return static_cast<int64_t>(std::llround(done * static_cast<double>(pass.tasks)));
      };
      if (task_at(begin) < task_at(end)) run(pass, build, task_at(begin), task_at(end));
      before += all;
    }
  });
}

}  // namespace mantissa::kernels::cpu
