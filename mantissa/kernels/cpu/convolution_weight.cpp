#include <algorithm>
#include <numeric>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include "mantissa/kernels/cpu/convolution.h"
#include "mantissa/kernels/cpu/convolution_shape_internal.h"
#include "mantissa/kernels/cpu/micro_tile_cost_internal.h"
#include "mantissa/kernels/cpu/parts_internal.h"
#include "mantissa/kernels/cpu/scratch_internal.h"

namespace mantissa::kernels::cpu {
namespace {

/// The blocks of a weight's gradient must not depend on how many channels a part has. The window therefore
/// always has room for at least this many channels, even in a depthwise convolution.
constexpr int64_t kWeightChannels = kConvolutionLanes, kWeightWindow = kConvolutionSource / kWeightChannels;

/// The partition of a weight's gradient: parts of at most `channels` x `outputs`, which are summed for
/// `together` outputs at a time.
struct WeightParts {
  int64_t channels, outputs, together, channel_parts, output_parts;
};

/// Returns the length of a run: the taps that are adjacent in the window, times the channels.
int64_t run_of(const BlockedConvolutionWeight& c, int64_t channels) {
  return (c.axes[2].dilation == 1 ? c.axes[2].taps : 1) * channels;
}

/// Returns the number of sums of one output: each run takes whole micro-panels.
int64_t sums_of(const BlockedConvolutionWeight& c, int64_t channels, const ConvolutionBuild& build) {
  const int64_t run = run_of(c, channels);
  return taps_of(c) * channels / run * round_up(run, build.nr);
}

WeightParts weight_parts_of(const BlockedConvolutionWeight& c, const ConvolutionBuild& build, int64_t threads,
                            bool in_lanes) {
  WeightParts parts{};
  const auto even = [](int64_t size, int64_t most, int64_t multiple) {
    return std::min(size, round_up(divide_up(size, divide_up(size, most)), multiple));
  };
  if (in_lanes) {
    // The lanes take one range of channels after the other, each of whole vectors.
    parts = {kConvolutionLanes, 0, kConvolutionLanes, 1, 0};
    parts.outputs = even(c.outputs, divide_up(c.outputs, threads), build.nr);
    parts.output_parts = divide_up(c.outputs, parts.outputs);
    return parts;
  }
  // Both operands are packed again for each part of the other. So there are as few parts as fit, but one per
  // thread.
  const int64_t most_outputs = std::min(c.outputs, kConvolutionOutputs);
  const int64_t fit = std::min(kConvolutionSums / (taps_of(c) * most_outputs),
                               kConvolutionSource / window_pixels(c.axes, c.block));
  const int64_t share = divide_up(c.channels * c.groups, threads);
  parts.channels = even(c.channels, std::max(kWeightChannels, std::min(fit, share) / 16 * 16), 16);
  parts.channel_parts = divide_up(c.channels, parts.channels);
  const int64_t wanted = divide_up(threads, std::gcd(threads, parts.channel_parts * c.groups));
  const int64_t room = std::max<int64_t>(1, kConvolutionSums / sums_of(c, parts.channels, build));
  const int64_t most = std::min({most_outputs, room, divide_up(c.outputs, wanted)});
  // If there are fewer channels than lanes of a vector, the outputs are the micro-tile's columns, in vectors.
  // Otherwise they are its rows, and parts of equal size may cost less than whole micro-tiles.
  if (parts.channels < build.nr / 2) {
    parts.outputs = even(c.outputs, most, divide_up(build.nr, 2));
  } else {
    const int64_t exact = even(c.outputs, most, 1), whole = even(c.outputs, most, build.mr);
    const auto cost = [&](int64_t rows) { return micro_tiles_cost(rows, build.mr, /*vectors=*/2); };
    parts.outputs = cost(exact) < cost(whole) ? exact : whole;
  }
  // The outputs may be either side of a micro-tile.
  parts.together = std::max(round_up(parts.outputs, build.mr), round_up(parts.outputs, build.nr));
  parts.output_parts = divide_up(c.outputs, parts.outputs);
  return parts;
}

/// A weight's gradient, its kernel, and how the work is partitioned.
struct WeightPass {
  BlockedConvolutionWeight c;
  ConvolutionWeightKernel* kernel = nullptr;
  bool in_lanes = false;  ///< groups of few channels
  WeightParts parts = {};
};

int64_t part_count(const WeightPass& pass) {
  return pass.c.groups * pass.parts.channel_parts * pass.parts.output_parts;
}

/// Returns the part at `index`, with all blocks.
ConvolutionWeightPart part_at(const WeightPass& pass, int64_t index) {
  const auto& [c, kernel, in_lanes, parts] = pass;
  const int64_t output = index % parts.output_parts * parts.outputs;
  const int64_t channel = index / parts.output_parts % parts.channel_parts * parts.channels;
  return {index / (parts.output_parts * parts.channel_parts),
          channel,
          std::min(c.channels, channel + parts.channels),
          output,
          std::min(c.outputs, output + parts.outputs),
          0,
          block_count(c),
          true};
}

/// Returns the number of sums of a part, in whole cache lines. Groups in lanes need those of one range at a
/// time.
int64_t sums_of(const WeightPass& pass, const ConvolutionBuild& build) {
  const auto& [c, kernel, in_lanes, parts] = pass;
  return in_lanes ? taps_of(c) * c.channels * kConvolutionLanes
                  : round_up(parts.together * sums_of(c, parts.channels, build), 16);
}

/// Returns this thread's working memory. `sums` is the memory for the sums, or null.
ConvolutionWeightScratch scratch_for(const WeightPass& pass, const ConvolutionBuild& build, float* sums) {
  const auto& [c, kernel, in_lanes, parts] = pass;
  const int64_t source = round_up(window_pixels(c.axes, c.block) * parts.channels + kGemmSlack, 16);
  const int64_t gradient = round_up(parts.together * kConvolutionChain + kGemmSlack, 16);
  const int64_t own = sums == nullptr ? sums_of(pass, build) + kGemmSlack : 0;
  float* const memory = thread_scratch(source + gradient + own);
  return {memory, memory + source, sums == nullptr ? memory + source + gradient : sums, 0};
}

/// Returns the approximate time of a part, in vector multiplications per result.
double cost_of(const WeightPass& pass, const ConvolutionBuild& build) {
  constexpr int64_t kPack = 6;  // for each vector that is widened and packed
  const auto& [c, kernel, in_lanes, parts] = pass;
  const int64_t lanes = build.nr / 2;
  const auto tiles = [&](int64_t rows, int64_t columns) {
    return micro_panels_cost(rows, columns, build.mr, build.nr);
  };
  const int64_t taps = taps_of(c), vectors = divide_up(parts.outputs, lanes);
  if (in_lanes) return static_cast<double>(vectors * (taps * c.channels + 2 * kPack));
  const int64_t run = run_of(c, parts.channels);
  const int64_t products = parts.channels < lanes ? tiles(taps * parts.channels, parts.outputs)
                                                  : taps * parts.channels / run * tiles(parts.outputs, run);
  return static_cast<double>(products + kPack * (vectors + divide_up(parts.channels, lanes)));
}

/// Returns how many blocks of a part the threads sum in one round: all of them, or as many as the memory
/// holds and as give equal shares.
int64_t blocks_of_a_round(const WeightPass& pass, const ConvolutionBuild& build, int64_t threads) {
  const int64_t all = block_count(pass.c), room = kSharedSums / sums_of(pass, build) - 1;
  return all <= room ? all : std::max<int64_t>(0, room) / threads * threads;
}

/// The approximate cost of a parallel region, in vector multiplications.
constexpr double kRegionCost = 1 << 15;

/// Returns the cost of storing and adding `sums` sums, in the same unit.
double adding_cost(const ConvolutionBuild& build, int64_t sums) {
  constexpr double kAdd = 6;
  return kAdd * static_cast<double>(sums) / static_cast<double>(build.nr);
}

/// True if it takes less time for threads to share the blocks of whole parts (`shared`) than to compute parts
/// of their own. Parts with few weights pack the whole source or gradient again, and may leave some threads
/// idle.
bool shares_blocks(const WeightPass& apart, const WeightPass& shared, const ConvolutionBuild& build,
                   int64_t threads) {
  constexpr double kGain = 1.05;  // at least
  if (threads == 1 || build.add_block_sums == nullptr) return false;
  const int64_t blocks = block_count(shared.c), round = blocks_of_a_round(shared, build, threads);
  if (round == 0) return false;
  const int64_t whole = blocks / round, rest = blocks % round;
  const int64_t largest = whole * divide_up(round, threads) + divide_up(rest, threads);
  const double of_block =
      cost_of(shared, build) * static_cast<double>(pixel_count(shared.c)) / static_cast<double>(blocks);
  const double adding = adding_cost(build, sums_of(shared, build) * blocks) / static_cast<double>(threads);
  const double regions = 2 * kRegionCost * static_cast<double>(divide_up(blocks, round));
  const double together =
      static_cast<double>(part_count(shared)) * (of_block * static_cast<double>(largest) + adding + regions);
  const double alone = static_cast<double>(divide_up(part_count(apart), threads)) * cost_of(apart, build) *
                       static_cast<double>(pixel_count(apart.c));
  return kGain * together < alone + kRegionCost;
}

/// Sums a round's blocks on all threads, each block separately, and adds the sums in order.
void run_shared(const WeightPass& pass, const ConvolutionBuild& build, ConvolutionWeightPart part,
                int64_t threads) {
  const int64_t count = sums_of(pass, build), round = blocks_of_a_round(pass, build, threads);
  const int64_t all = part.block_end;
  float* const total = shared_scratch((round + 1) * count + kGemmSlack);
  float* const sums = total + count;
  part.writes = false;
  for (int64_t first = 0; first < all; first += round) {
    const int64_t blocks = std::min(round, all - first), shares = std::min(threads, blocks);
    at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
      ConvolutionWeightPart share = part;
      const int64_t before = blocks * begin / shares;
      share.block_begin = first + before;
      share.block_end = first + blocks * end / shares;
      ConvolutionWeightScratch scratch = scratch_for(pass, build, sums + before * count);
      scratch.block_sums = count;
      pass.kernel(pass.c, share, scratch);
    });
    // The calling thread adds few sums alone. Otherwise as many threads add as have summed, because OpenMP
    // ends threads that a smaller region does not use.
    const int64_t lines = count / 16,
                  adders = adding_cost(build, count * blocks) < 2 * kRegionCost ? 1 : shares;
    at::parallel_for(0, adders, 1, [&](int64_t begin, int64_t end) {
      const int64_t from = lines * begin / adders * 16, to = lines * end / adders * 16;
      build.add_block_sums(sums + from, count, blocks, to - from, first > 0, total + from);
    });
  }
  part.block_begin = part.block_end;
  part.writes = true;
  pass.kernel(pass.c, part, scratch_for(pass, build, total));
}

}  // namespace

bool is_computable(const ConvolutionWeight& c) { return is_within(c, kWeightWindow); }

void convolution_weight(const ConvolutionWeight& problem, const ConvolutionBuild& build) {
  BlockedConvolutionWeight c{problem};
  TORCH_CHECK(is_computable(c), "convolution_weight: a kernel of ", taps_of(c),
              " taps reaches over too much of the source for the scratch; check is_computable() first");
  const bool depthwise = is_depthwise(c);
  if (depthwise) {
    make_channels_of_groups(c.source);
    make_channels_of_groups(c.gradient);
    c.out.image_stride = c.out.group_stride;
    std::swap(c.groups, c.outputs);
  }
  const bool groups = has_rows_of_groups(c, c.gradient, build);
  if (groups) join_groups(c);
  drop_gaps(c);
  ConvolutionWeightKernel* const kernel = depthwise ? build.convolve_depthwise_weight
                                          : groups  ? build.convolve_groups_weight
                                                    : build.convolve_weight;
  choose_blocks(c, kConvolutionChain, kWeightWindow);
  const int64_t threads = threads_for(pixel_count(c) * c.groups * c.outputs * c.channels * taps_of(c));
  const bool in_lanes = depthwise || groups;
  const WeightPass apart{c, kernel, in_lanes, weight_parts_of(c, build, threads, in_lanes)};
  WeightPass shared{c, kernel, in_lanes, weight_parts_of(c, build, 1, in_lanes)};
  if (in_lanes) {
    shared.parts.outputs = std::min(c.outputs, kConvolutionLanes);
    shared.parts.output_parts = divide_up(c.outputs, kConvolutionLanes);
  }
  if (shares_blocks(apart, shared, build, threads)) {
    for (const auto index : c10::irange(part_count(shared)))
      run_shared(shared, build, part_at(shared, index), threads);
    return;
  }
  const int64_t tasks = part_count(apart);
  at::parallel_for(0, tasks, divide_up(tasks, threads), [&](int64_t begin, int64_t end) {
    const ConvolutionWeightScratch scratch = scratch_for(apart, build, nullptr);
    for (const auto task : c10::irange(begin, end)) kernel(c, part_at(apart, task), scratch);
  });
}

}  // namespace mantissa::kernels::cpu
