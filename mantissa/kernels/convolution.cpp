#include "mantissa/kernels/convolution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include "mantissa/kernels/choice_internal.h"
#include "mantissa/kernels/parts_internal.h"
#include "mantissa/kernels/scratch_internal.h"

namespace mantissa {
namespace {

int64_t taps_of(const cpu::Axis* axes) { return axes[0].taps * axes[1].taps * axes[2].taps; }

template <typename Problem>
int64_t taps_of(const Problem& c) {
  return taps_of(c.axes);
}

/// Channels whose taps make one chain; a function of the shape alone.
int64_t block_channels(const cpu::Convolution& c) {
  const int64_t most = std::max<int64_t>(1, cpu::kConvolutionDepth / std::max<int64_t>(1, taps_of(c)));
  return std::min(c.channels, most < 16 ? most : most / 16 * 16);
}

/// What `extent` results along an axis read of it.
int64_t span(const cpu::Axis& axis, int64_t extent) {
  return axis.taps == 0 ? 0 : (extent - 1) * axis.step + (axis.taps - 1) * axis.dilation + 1;
}

/// Pixels of the source that a block needs, its border included.
int64_t window_pixels(const cpu::Axis* axes, const int64_t* block) {
  return block[0] * span(axes[0], block[1]) * span(axes[1], block[2]) * span(axes[2], block[3]);
}

template <typename Problem>
int64_t size_along(const Problem& c, int dim) {
  return dim == 0 ? c.batch : c.axes[dim - 1].out;
}

template <typename Problem>
int64_t block_count(const Problem& c) {
  int64_t count = 1;
  for (const auto dim : c10::irange(4)) count *= divide_up(size_along(c, dim), c.block[dim]);
  return count;
}

template <typename Problem>
int64_t pixel_count(const Problem& c) {
  return c.batch * c.axes[0].out * c.axes[1].out * c.axes[2].out;
}

/// Drops what is skipped: of an axis with one tap, only positions that are read remain.
template <typename Problem>
void drop_gaps(Problem& c) {
  for (const auto a : c10::irange(3)) {
    cpu::Axis& axis = c.axes[a];
    const bool inside = axis.origin >= 0 && axis.origin + (axis.out - 1) * axis.step < axis.size;
    // Channels that are apart are read in vectors along the last axis, which must stay adjacent.
    if (axis.taps != 1 || !inside || (a == 2 && axis.step > 1 && c.source.channel_stride != 1)) continue;
    c.source.data = advanced(c.source.data, c.source.element, axis.origin * c.source.strides[a]);
    c.source.strides[a] *= axis.step;
    axis = {axis.out, axis.out, 1, 1, 1, 0};
  }
}

/// Makes rows that follow each other in source and results one row.
void join_rows(cpu::Convolution& c) {
  for (const int a : {1, 0}) {
    const cpu::Axis &outer = c.axes[a], &inner = c.axes[2];
    const auto is_plain = [](const cpu::Axis& axis) {
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

/// Makes blocks of up to `pixels` results, which need up to `window` pixels of the source: from the last axis
/// outwards as many as fit.
template <typename Problem>
void choose_blocks(Problem& c, int64_t pixels, int64_t window) {
  std::fill_n(c.block, 4, 1);
  for (int dim = 3; dim >= 0; --dim) {
    const int64_t size = size_along(c, dim);
    int64_t low = 1, high = size;  // the largest that fits
    while (low < high) {
      c.block[dim] = (low + high + 1) / 2;
      const bool fits = c.block[0] * c.block[1] * c.block[2] * c.block[3] <= pixels &&
                        window_pixels(c.axes, c.block) <= window;
      if (fits)
        low = c.block[dim];
      else
        high = c.block[dim] - 1;
    }
    c.block[dim] = divide_up(size, divide_up(size, low));
    if (c.block[dim] < size) break;
  }
}

/// Whether a kernel has few enough taps, and a single result's window up to `window` pixels.
template <typename Problem>
bool is_within(const Problem& c, int64_t window) {
  // Alone first: what is larger might overflow the products.
  for (const cpu::Axis& axis : c.axes)
    if (axis.taps > cpu::kConvolutionDepth || span(axis, 1) > window) return false;
  constexpr std::array<int64_t, 4> kPixel = {1, 1, 1, 1};
  return taps_of(c) <= cpu::kConvolutionDepth && window_pixels(c.axes, kPixel.data()) <= window;
}

int64_t result_count(const cpu::Convolution& c) { return pixel_count(c) * c.groups * c.outputs; }

int64_t product_count(const cpu::Convolution& c) {
  return result_count(c) * c.channels * std::max<int64_t>(1, taps_of(c));
}

/// What it costs, about: a result's products, and its rounding and writing.
double work_of(const cpu::Convolution& c) {
  return static_cast<double>(result_count(c)) * static_cast<double>(c.channels * taps_of(c) + 8);
}

/// Each group has one channel and one result.
template <typename Problem>
bool is_depthwise(const Problem& c) {
  return c.groups > 1 && c.channels == 1 && c.outputs == 1;
}

/// As the depthwise kernels take it: the groups are channels.
template <typename Images>
void make_channels_of_groups(Images& images) {
  images.channel_stride = images.group_stride;
  images.group_stride = 0;
}

/// Whether convolve_groups() takes it, whose results, or their gradient, are `results`.
template <typename Problem, typename Results>
bool has_rows_of_groups(const Problem& c, const Results& results, const ConvolutionBuild& build) {
  const auto* const end = std::end(cpu::kConvolutionGroups);
  // A group's channels are one chain there.
  if (taps_of(c) * c.channels > cpu::kConvolutionDepth) return false;
  return build.convolve_groups != nullptr && c.groups > 1 && c.channels == c.outputs &&
         std::find(std::begin(cpu::kConvolutionGroups), end, c.channels) != end &&
         c.groups * c.channels % (build.tile_cols / 2) == 0 && results.channel_stride == 1 &&
         results.group_stride == c.channels &&
         c.source.group_stride == c.channels * c.source.channel_stride &&
         is_within(c, cpu::kConvolutionSource / cpu::kConvolutionLanes);
}

/// As convolve_groups() takes it: the channels of all groups are one another's neighbours.
template <typename Problem>
void join_groups(Problem& c) {
  c.outputs *= c.groups;
  c.groups = 1;
}

/// Whether convolve_few() takes it.
bool has_few_results(const cpu::Convolution& c, const ConvolutionBuild& build) {
  const cpu::Axis& last = c.axes[2];
  const bool steps = std::any_of(std::begin(c.axes), std::end(c.axes),
                                 [](const cpu::Axis& axis) { return axis.step != 1 && axis.out > 1; });
  if (build.convolve_few == nullptr || steps || taps_of(c) == 0 || last.out < cpu::kFewWidth) return false;
  // Of a vector's lanes the share that is of use: the pixels' among the positions of a row, or the results'.
  // Both kernels take as long where the first is 1.75 times the second.
  const int64_t lanes = build.tile_cols / 2, positions = span(last, last.out);
  if (positions > 2 * last.out) return false;
  if (c.outputs <= lanes / 2) return 4 * last.out * lanes >= 7 * positions * c.outputs;
  // Of more results where each is a short sum, whose reordering from channels to pixels would cost as much.
  return c.channels * taps_of(c) <= cpu::kFewSteps && c.source.strides[2] == 1 && c.out.strides[2] == 1 &&
         4 * last.out >= 3 * positions;
}

/// A convolution, its kernel, and how the work is cut: blocks, fastest, then ranges of channels, then groups.
struct Pass {
  cpu::Convolution c;
  cpu::ConvolutionKernel* kernel;
  int64_t window_channels, blocks, ranges, outputs, tasks;
  bool has_few_results;
};

/// The same convolution as it is computed; how it is cut is still open.
Pass pass_of(const cpu::Convolution& c, const ConvolutionBuild& build) {
  Pass pass{c, build.convolve, 0, 0, 1, 0, 0, false};
  if (is_depthwise(c)) {
    make_channels_of_groups(pass.c.source);
    make_channels_of_groups(pass.c.out);
    pass.c.weight.image_stride = c.weight.group_stride;
    std::swap(pass.c.groups, pass.c.outputs);
    pass.kernel = build.convolve_depthwise;
    pass.window_channels = cpu::kConvolutionLanes;
  } else if (has_rows_of_groups(c, c.out, build)) {
    join_groups(pass.c);
    pass.kernel = build.convolve_groups;
    pass.window_channels = cpu::kConvolutionLanes;
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

/// Whether threads share a group's channels, so that each widens the source, rather than its pixels, so that
/// each packs the weight: where the weight is larger and threads come out even.
bool is_cut_by_outputs(const Pass& pass, const ConvolutionBuild& build, int64_t threads) {
  const cpu::Convolution& c = pass.c;
  const int64_t tiles = divide_up(c.outputs, build.tile_cols);
  return pass.kernel == build.convolve && c.outputs * taps_of(c) > pixel_count(c) &&
         (tiles % threads == 0 || tiles >= 8 * threads);
}

void cut(Pass& pass, const ConvolutionBuild& build, int64_t threads) {
  cpu::Convolution& c = pass.c;
  const bool by_outputs = is_cut_by_outputs(pass, build, threads);
  // Enough blocks for all threads.
  const int64_t share = divide_up(pixel_count(c) * c.groups, by_outputs ? 1 : threads);
  choose_blocks(c, std::clamp<int64_t>(share, 48, cpu::kConvolutionPixels),
                cpu::kConvolutionSource / pass.window_channels);
  pass.blocks = block_count(c);
  pass.outputs = c.outputs;
  const int64_t parts = by_outputs ? c.groups : pass.blocks * c.groups;
  if (parts % threads != 0 && parts < 8 * threads) {
    const int64_t wanted = threads / std::gcd(threads, parts);
    pass.outputs = round_up(divide_up(c.outputs, wanted), build.tile_cols);
    pass.ranges = divide_up(c.outputs, pass.outputs);
  }
  pass.tasks = pass.blocks * c.groups * pass.ranges;
}

/// This thread's working memory.
cpu::ConvolutionScratch scratch_for(const Pass& pass, const ConvolutionBuild& build) {
  const cpu::Convolution& c = pass.c;
  const int64_t columns = round_up(std::min(c.outputs, pass.outputs), build.tile_cols);
  // A turned one's panels have the taps of what it is the adjoint of; its own axes say what a block reads.
  const int64_t taps = c.is_turned ? taps_of(c.forward) : taps_of(c.axes);
  const int64_t all = columns * c.channels * taps;
  const int64_t panel = build.tile_cols * c.block_channels * taps;
  // Decided by the largest part, for all: the last one may be smaller.
  const bool stays = all <= cpu::kConvolutionWeights;
  const auto line = [](int64_t floats) { return round_up(floats, 16); };
  const int64_t source =
      line((window_pixels(c.axes, c.block) + (pass.has_few_results ? cpu::kFewPlaneEnd : 0)) *
               pass.window_channels +
           cpu::kGemmSlack);
  // Few results have narrower panels, which are packed as wide ones.
  const int64_t weights = line((stays ? all + (pass.has_few_results ? panel : 0) : panel) + cpu::kGemmSlack);
  const int64_t pixels = cpu::kConvolutionPixels + 48;
  const int64_t sums = pass.has_few_results ? std::min(c.outputs, build.tile_cols / 4) * cpu::kFewPitch
                       : c.block_channels < c.channels ? pixels * std::min(columns, cpu::kConvolutionColumns)
                                                       : 0;
  constexpr int64_t kFloats = sizeof(int64_t) / sizeof(float);
  float* const memory = thread_scratch(source + weights + sums + 2 * pixels * kFloats);
  auto* const tables = reinterpret_cast<int64_t*>(memory + source + weights + sums);
  return {memory, memory + source, stays, memory + source + weights, tables, tables + pixels};
}

/// For a weight's gradient: its blocks must not depend on how many channels a part has, so there is room for
/// this many at least, also for a depthwise one's.
constexpr int64_t kWeightChannels = cpu::kConvolutionLanes,
                  kWeightWindow = cpu::kConvolutionSource / kWeightChannels;

/// How a weight's gradient is cut: parts of up to so many channels and outputs, whose sums are made for
/// `together` outputs at a time.
struct WeightParts {
  int64_t channels, outputs, together, channel_parts, output_parts;
};

/// The length of a run: the taps that lie side by side in the window, times the channels.
int64_t run_of(const cpu::ConvolutionWeight& c, int64_t channels) {
  return (c.axes[2].dilation == 1 ? c.axes[2].taps : 1) * channels;
}

/// The sums of one output: for each run whole tiles.
int64_t sums_of(const cpu::ConvolutionWeight& c, int64_t channels, const ConvolutionBuild& build) {
  const int64_t run = run_of(c, channels);
  return taps_of(c) * channels / run * round_up(run, build.tile_cols);
}

WeightParts weight_parts_of(const cpu::ConvolutionWeight& c, const ConvolutionBuild& build, int64_t threads,
                            bool in_lanes) {
  WeightParts parts{};
  const auto even = [](int64_t size, int64_t most, int64_t multiple) {
    return std::min(size, round_up(divide_up(size, divide_up(size, most)), multiple));
  };
  if (in_lanes) {
    // One range of channels after the other, whole vectors each.
    parts = {cpu::kConvolutionLanes, 0, cpu::kConvolutionLanes, 1, 0};
    parts.outputs = even(c.outputs, divide_up(c.outputs, threads), build.tile_cols);
    parts.output_parts = divide_up(c.outputs, parts.outputs);
    return parts;
  }
  // Both operands are packed anew for each part of the other: the fewest parts that fit, but one per thread.
  const int64_t most_outputs = std::min(c.outputs, cpu::kConvolutionOutputs);
  const int64_t fit = std::min(cpu::kConvolutionSums / (taps_of(c) * most_outputs),
                               cpu::kConvolutionSource / window_pixels(c.axes, c.block));
  const int64_t share = divide_up(c.channels * c.groups, threads);
  parts.channels = even(c.channels, std::max(kWeightChannels, std::min(fit, share) / 16 * 16), 16);
  parts.channel_parts = divide_up(c.channels, parts.channels);
  const int64_t wanted = divide_up(threads, std::gcd(threads, parts.channel_parts * c.groups));
  const int64_t room = std::max<int64_t>(1, cpu::kConvolutionSums / sums_of(c, parts.channels, build));
  const int64_t most = std::min({most_outputs, room, divide_up(c.outputs, wanted)});
  // Where channels are fewer than a vector's lanes, outputs are a tile's columns, in vectors. Else they are
  // its rows, and even parts may cost less than whole tiles.
  if (parts.channels < build.tile_cols / 2) {
    parts.outputs = even(c.outputs, most, divide_up(build.tile_cols, 2));
  } else {
    const int64_t exact = even(c.outputs, most, 1), whole = even(c.outputs, most, build.tile_rows);
    const auto cost = [&](int64_t rows) { return tiles_cost(rows, build.tile_rows, /*vectors=*/2); };
    parts.outputs = cost(exact) < cost(whole) ? exact : whole;
  }
  // Either side of a tile may be the outputs'.
  parts.together =
      std::max(round_up(parts.outputs, build.tile_rows), round_up(parts.outputs, build.tile_cols));
  parts.output_parts = divide_up(c.outputs, parts.outputs);
  return parts;
}

/// A weight's gradient, its kernel, and how the work is cut.
struct WeightPass {
  cpu::ConvolutionWeight c;
  cpu::ConvolutionWeightKernel* kernel = nullptr;
  bool in_lanes = false;  ///< groups of few channels
  WeightParts parts = {};
};

int64_t part_count(const WeightPass& pass) {
  return pass.c.groups * pass.parts.channel_parts * pass.parts.output_parts;
}

/// With all blocks.
cpu::ConvolutionWeightPart part_at(const WeightPass& pass, int64_t index) {
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

/// The sums of a part, in whole lines of the cache. Groups in lanes have those of one range at a time.
int64_t sums_of(const WeightPass& pass, const ConvolutionBuild& build) {
  const auto& [c, kernel, in_lanes, parts] = pass;
  return in_lanes ? taps_of(c) * c.channels * cpu::kConvolutionLanes
                  : round_up(parts.together * sums_of(c, parts.channels, build), 16);
}

/// This thread's working memory; `sums`: where these are, or null.
cpu::ConvolutionWeightScratch scratch_for(const WeightPass& pass, const ConvolutionBuild& build,
                                          float* sums) {
  const auto& [c, kernel, in_lanes, parts] = pass;
  const int64_t source = round_up(window_pixels(c.axes, c.block) * parts.channels + cpu::kGemmSlack, 16);
  const int64_t gradient = round_up(parts.together * cpu::kConvolutionChain + cpu::kGemmSlack, 16);
  const int64_t own = sums == nullptr ? sums_of(pass, build) + cpu::kGemmSlack : 0;
  float* const memory = thread_scratch(source + gradient + own);
  return {memory, memory + source, sums == nullptr ? memory + source + gradient : sums, 0};
}

/// The time of a part, about, in multiplications of vectors for each result.
double cost_of(const WeightPass& pass, const ConvolutionBuild& build) {
  constexpr int64_t kPack = 6;  // for each vector that is widened and packed
  const auto& [c, kernel, in_lanes, parts] = pass;
  const int64_t lanes = build.tile_cols / 2;
  const auto tiles = [&](int64_t rows, int64_t columns) {
    return panels_cost(rows, columns, build.tile_rows, build.tile_cols);
  };
  const int64_t taps = taps_of(c), vectors = divide_up(parts.outputs, lanes);
  if (in_lanes) return static_cast<double>(vectors * (taps * c.channels + 2 * kPack));
  const int64_t run = run_of(c, parts.channels);
  const int64_t products = parts.channels < lanes ? tiles(taps * parts.channels, parts.outputs)
                                                  : taps * parts.channels / run * tiles(parts.outputs, run);
  return static_cast<double>(products + kPack * (vectors + divide_up(parts.channels, lanes)));
}

/// The blocks of a part whose sums threads make in a round, each its share of them: all, or as many as there is
/// room for and as make equal shares.
int64_t blocks_of_a_round(const WeightPass& pass, const ConvolutionBuild& build, int64_t threads) {
  const int64_t all = block_count(pass.c), room = cpu::kSharedSums / sums_of(pass, build) - 1;
  return all <= room ? all : std::max<int64_t>(0, room) / threads * threads;
}

/// A parallel region costs about as much as this many multiplications of vectors.
constexpr double kRegionCost = 1 << 15;

/// The cost of storing and adding `sums` sums, in the same unit.
double adding_cost(const ConvolutionBuild& build, int64_t sums) {
  constexpr double kAdd = 6;
  return kAdd * static_cast<double>(sums) / static_cast<double>(build.tile_cols);
}

/// Whether threads share the blocks of whole parts (`shared`) in less time than they take for parts of their
/// own: parts of few weights, each of which packs the whole source or gradient again, may not come out even.
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

/// Makes the sums of a round's blocks on all threads, each block's apart, and adds them in order.
void run_shared(const WeightPass& pass, const ConvolutionBuild& build, cpu::ConvolutionWeightPart part,
                int64_t threads) {
  const int64_t count = sums_of(pass, build), round = blocks_of_a_round(pass, build, threads);
  const int64_t all = part.block_end;
  float* const total = shared_scratch((round + 1) * count + cpu::kGemmSlack);
  float* const sums = total + count;
  part.writes = false;
  for (int64_t first = 0; first < all; first += round) {
    const int64_t blocks = std::min(round, all - first), shares = std::min(threads, blocks);
    at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
      cpu::ConvolutionWeightPart share = part;
      const int64_t before = blocks * begin / shares;
      share.block_begin = first + before;
      share.block_end = first + blocks * end / shares;
      cpu::ConvolutionWeightScratch scratch = scratch_for(pass, build, sums + before * count);
      scratch.block_sums = count;
      pass.kernel(pass.c, share, scratch);
    });
    // Few sums are added on the calling thread; others by as many as made them, since OpenMP ends threads that a
    // smaller region has no use for.
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

/// Tasks [begin, end) of one convolution.
void run(const Pass& pass, const ConvolutionBuild& build, int64_t begin, int64_t end) {
  const cpu::ConvolutionScratch scratch = scratch_for(pass, build);
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

/// How many kinds of positions there are, each with taps of its own; at most one more than is of use.
int64_t phases_of(const cpu::Convolution& c) {
  int64_t phases = 1;
  for (const cpu::Axis& axis : c.axes)
    phases = std::min(phases * std::min(axis.step, cpu::kTurnedPhases + 1), cpu::kTurnedPhases + 1);
  return phases;
}

}  // namespace

const std::vector<ConvolutionBuild>& convolution_builds() {
  static const std::vector<ConvolutionBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, cpu::avx512::convolve, cpu::avx512::convolve_depthwise, cpu::avx512::convolve_weight,
     cpu::avx512::convolve_depthwise_weight, cpu::avx512::convolve_groups,
     cpu::avx512::convolve_groups_weight, cpu::avx512::convolve_few, cpu::avx512::add_block_sums, 12, 32},
    {CpuTier::kAvx2, cpu::avx2::convolve, cpu::avx2::convolve_depthwise, cpu::avx2::convolve_weight,
     cpu::avx2::convolve_depthwise_weight, cpu::avx2::convolve_groups, cpu::avx2::convolve_groups_weight,
     cpu::avx2::convolve_few, cpu::avx2::add_block_sums, 6, 16},
#endif
    {CpuTier::kGeneric, cpu::generic::convolve, cpu::generic::convolve_depthwise,
     cpu::generic::convolve_weight, cpu::generic::convolve_depthwise_weight, nullptr, nullptr, nullptr,
     nullptr, 1, 1}
  };
  return builds;
}

bool is_computable(const cpu::Convolution& c) {
  return is_within(c,
                   cpu::kConvolutionSource / (is_depthwise(c) ? cpu::kConvolutionLanes : block_channels(c)));
}

bool is_computable(const cpu::ConvolutionWeight& c) { return is_within(c, kWeightWindow); }

void convolution(const std::vector<cpu::Convolution>& convolutions, const ConvolutionBuild& build) {
  int64_t products = 0;
  double work = 0;
  std::vector<Pass> passes;
  for (const cpu::Convolution& c : convolutions) {
    TORCH_CHECK(is_computable(c), "convolution: a kernel of ", taps_of(c), " taps reaches over too much of ",
                "the source for the scratch; ask is_computable() first");
    passes.push_back(pass_of(c, build));
    products += product_count(c);
    work += work_of(c);
  }
  const int64_t threads = threads_for(products);
  for (Pass& pass : passes) cut(pass, build, threads);
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    // A thread's share is one of the work, not of the tasks: those of a strided gradient have one tap, two or
    // four.
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

void convolution_weight(cpu::ConvolutionWeight c, const ConvolutionBuild& build) {
  TORCH_CHECK(is_computable(c), "convolution_weight: a kernel of ", taps_of(c),
              " taps reaches over too much of the source for the scratch; ask is_computable() first");
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
  cpu::ConvolutionWeightKernel* const kernel = depthwise ? build.convolve_depthwise_weight
                                               : groups  ? build.convolve_groups_weight
                                                         : build.convolve_weight;
  choose_blocks(c, cpu::kConvolutionChain, kWeightWindow);
  const int64_t threads = threads_for(pixel_count(c) * c.groups * c.outputs * c.channels * taps_of(c));
  const bool in_lanes = depthwise || groups;
  const WeightPass apart{c, kernel, in_lanes, weight_parts_of(c, build, threads, in_lanes)};
  WeightPass shared{c, kernel, in_lanes, weight_parts_of(c, build, 1, in_lanes)};
  if (in_lanes) {
    shared.parts.outputs = std::min(c.outputs, cpu::kConvolutionLanes);
    shared.parts.output_parts = divide_up(c.outputs, cpu::kConvolutionLanes);
  }
  if (shares_blocks(apart, shared, build, threads)) {
    for (const auto index : c10::irange(part_count(shared)))
      run_shared(shared, build, part_at(shared, index), threads);
    return;
  }
  const int64_t tasks = part_count(apart);
  at::parallel_for(0, tasks, divide_up(tasks, threads), [&](int64_t begin, int64_t end) {
    const cpu::ConvolutionWeightScratch scratch = scratch_for(apart, build, nullptr);
    for (const auto task : c10::irange(begin, end)) kernel(c, part_at(apart, task), scratch);
  });
}

std::vector<cpu::Convolution> adjoint(const cpu::Convolution& c) {
  cpu::Convolution turned = c;
  const int64_t phases = phases_of(c);
  if (is_depthwise(c) && 1 < phases && phases <= cpu::kTurnedPhases) {
    // Its passes would each read the whole source for a part of the results, and write those apart from each
    // other.
    turned.is_turned = true;
    for (const auto a : c10::irange(3)) {
      const cpu::Axis& axis = turned.forward[a] = c.axes[a];
      // Of positions within a distance of extent - 1 + (taps - 1) * dilation one in `step` is a result's.
      const int64_t reach = (axis.taps - 1) * axis.dilation / axis.step + 1;
      turned.axes[a] = {axis.out, axis.size, std::max(reach, axis.taps), 1, 1, 0};
    }
    return {turned};
  }
  std::swap(turned.channels, turned.outputs);
  std::swap(turned.weight.image_stride, turned.weight.channel_stride);
  std::vector<cpu::Convolution> passes = {turned};
  for (const auto a : c10::irange(3)) {
    // Position y is reached from result i by tap t if y = origin + i * step + t * dilation. For the positions
    // phase + j * step these are the taps first + m * every, and i = j + (phase - origin - t * dilation) /
    // step.
    const cpu::Axis& axis = c.axes[a];
    const int64_t every = axis.step / std::gcd(axis.step, axis.dilation);
    std::vector<cpu::Convolution> split;
    for (const auto phase : c10::irange(std::min(axis.step, axis.size))) {
      const int64_t most = std::min(every, axis.taps);
      int64_t first = 0;
      while (first < most && (phase - axis.origin - first * axis.dilation) % axis.step != 0) ++first;
      const int64_t taps = first < most ? divide_up(axis.taps - first, every) : 0;
      const int64_t last = first + (taps - 1) * every;  // read backwards, so that positions ascend
      for (cpu::Convolution pass : passes) {
        pass.axes[a] = {axis.out, divide_up(axis.size - phase, axis.step), taps, 1, 1, 0};
        if (taps > 0) {
          pass.axes[a].dilation = every * axis.dilation / axis.step;
          pass.axes[a].origin = (phase - axis.origin - last * axis.dilation) / axis.step;
          pass.weight.data = advanced(pass.weight.data, pass.weight.element, last * pass.weight.strides[a]);
          pass.weight.strides[a] *= -every;
        }
        pass.out.data = advanced(pass.out.data, pass.out.element, phase * pass.out.strides[a]);
        pass.out.strides[a] *= axis.step;
        split.push_back(pass);
      }
    }
    passes = std::move(split);
  }
  return passes;
}

}  // namespace mantissa
