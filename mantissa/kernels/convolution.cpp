#include "mantissa/kernels/convolution.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include "mantissa/core/parallel_internal.h"
#include "mantissa/kernels/scratch_internal.h"

namespace mantissa {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

template <typename Problem>
int64_t taps_of(const Problem& c) {
  return c.axes[0].taps * c.axes[1].taps * c.axes[2].taps;
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

int64_t block_count(const cpu::Convolution& c) {
  int64_t count = 1;
  for (const auto dim : c10::irange(4)) count *= divide_up(size_along(c, dim), c.block[dim]);
  return count;
}

template <typename Problem>
int64_t pixel_count(const Problem& c) {
  return c.batch * c.axes[0].out * c.axes[1].out * c.axes[2].out;
}

template <typename Pointer>
Pointer advanced(Pointer data, cpu::Element element, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return static_cast<Byte*>(data) + elements * (element == cpu::Element::kFloat32 ? 4 : 2);
}

/// The same convolution without what it would skip: along an axis with one tap, only positions that are read.
cpu::Convolution without_gaps(cpu::Convolution c) {
  for (const auto a : c10::irange(3)) {
    cpu::Axis& axis = c.axes[a];
    const bool inside = axis.origin >= 0 && axis.origin + (axis.out - 1) * axis.step < axis.size;
    // Channels that are apart are read in vectors along the last axis, which must stay adjacent.
    if (axis.taps != 1 || !inside || (a == 2 && axis.step > 1 && c.source.channel_stride != 1)) continue;
    c.source.data = advanced(c.source.data, c.source.element, axis.origin * c.source.strides[a]);
    c.source.strides[a] *= axis.step;
    axis = {axis.out, axis.out, 1, 1, 1, 0};
  }
  // Rows that follow each other in both are one row.
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
  return c;
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

/// This thread's working memory.
cpu::ConvolutionScratch scratch_for(const cpu::Convolution& c, int64_t outputs,
                                    const ConvolutionBuild& build) {
  const int64_t columns = round_up(outputs, build.tile_cols), depth = c.channels * taps_of(c);
  const int64_t panel = build.tile_cols * c.block_channels * taps_of(c);
  const int64_t source = round_up(window_pixels(c.axes, c.block) * c.block_channels + cpu::kGemmSlack, 16);
  const int64_t weights =
      round_up((columns * depth <= cpu::kConvolutionWeights ? columns * depth : panel) + cpu::kGemmSlack, 16);
  const int64_t pixels = cpu::kConvolutionPixels + 48;
  const int64_t sums =
      c.block_channels < c.channels ? pixels * std::min(columns, cpu::kConvolutionColumns) : 0;
  auto* const memory =
      static_cast<float*>(thread_scratch((source + weights + sums) * static_cast<int64_t>(sizeof(float)) +
                                         2 * pixels * static_cast<int64_t>(sizeof(int64_t))));
  auto* const tables = reinterpret_cast<int64_t*>(memory + source + weights + sums);
  return {memory, memory + source, memory + source + weights, tables, tables + pixels};
}

/// For a weight's gradient: its blocks must not depend on how many channels a part has, so there is room for
/// this many at least.
constexpr int64_t kWeightChannels = 16, kWeightWindow = cpu::kConvolutionSource / kWeightChannels;

/// How a weight's gradient is cut: parts of up to so many channels and outputs.
struct WeightParts {
  int64_t channels, outputs, channel_parts, output_parts;
};

WeightParts weight_parts_of(const cpu::ConvolutionWeight& c, const ConvolutionBuild& build, int64_t threads) {
  WeightParts parts{};
  const auto even = [](int64_t size, int64_t most, int64_t multiple) {
    return std::min(size, round_up(divide_up(size, divide_up(size, most)), multiple));
  };
  // Both operands are packed anew for each part of the other: the fewest parts that fit, but one per thread.
  const int64_t taps = taps_of(c);
  const int64_t most_outputs = std::min(c.outputs, cpu::kConvolutionOutputs);
  const int64_t fit = std::min(cpu::kConvolutionSums / (taps * most_outputs),
                               cpu::kConvolutionSource / window_pixels(c.axes, c.block));
  const int64_t share = divide_up(c.channels * c.groups, threads);
  parts.channels = even(c.channels, std::max(kWeightChannels, std::min(fit, share) / 16 * 16), 16);
  parts.channel_parts = divide_up(c.channels, parts.channels);
  const int64_t wanted = divide_up(threads, std::gcd(threads, parts.channel_parts * c.groups));
  const int64_t room = std::max<int64_t>(1, cpu::kConvolutionSums / (taps * parts.channels));
  parts.outputs =
      even(c.outputs, std::min({most_outputs, room, divide_up(c.outputs, wanted)}), build.tile_rows);
  parts.output_parts = divide_up(c.outputs, parts.outputs);
  return parts;
}

cpu::ConvolutionWeightScratch scratch_for(const cpu::ConvolutionWeight& c, const WeightParts& parts,
                                          const ConvolutionBuild& build) {
  const cpu::Axis& width = c.axes[2];
  const int64_t outputs = round_up(parts.outputs, build.tile_rows);
  const int64_t run = (width.dilation == 1 ? width.taps : 1) * parts.channels;
  const int64_t source = round_up(window_pixels(c.axes, c.block) * parts.channels + cpu::kGemmSlack, 16);
  const int64_t gradient = round_up(outputs * cpu::kConvolutionChain + cpu::kGemmSlack, 16);
  const int64_t sums = outputs * (taps_of(c) * parts.channels / run) * round_up(run, build.tile_cols);
  auto* const memory =
      static_cast<float*>(thread_scratch((source + gradient + sums) * static_cast<int64_t>(sizeof(float))));
  return {memory, memory + source, memory + source + gradient};
}

/// How the work of one convolution is cut: blocks, fastest, then ranges of channels, then groups.
struct Tasks {
  int64_t blocks, ranges, outputs, count;
};

Tasks tasks_of(const cpu::Convolution& c, const ConvolutionBuild& build, int64_t threads) {
  Tasks tasks{block_count(c), 1, c.outputs, 0};
  const int64_t parts = tasks.blocks * c.groups;
  if (parts % threads != 0 && parts < 8 * threads) {
    const int64_t wanted = threads / std::gcd(threads, parts);
    tasks.outputs = round_up(divide_up(c.outputs, wanted), build.tile_cols);
    tasks.ranges = divide_up(c.outputs, tasks.outputs);
  }
  tasks.count = parts * tasks.ranges;
  return tasks;
}

/// As in gemm(): each thread shall have some microseconds of work.
int64_t threads_for(int64_t products) {
  constexpr int64_t kProductsPerThread = int64_t{1} << 18;
  const int64_t worth = std::max<int64_t>(1, products / kProductsPerThread);
  return at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), worth);
}

/// Tasks [begin, end) of one convolution.
void run(const cpu::Convolution& c, const Tasks& tasks, const ConvolutionBuild& build, int64_t begin,
         int64_t end) {
  const cpu::ConvolutionScratch scratch = scratch_for(c, std::min(c.outputs, tasks.outputs), build);
  while (begin < end) {
    const int64_t block = begin % tasks.blocks, range = begin / tasks.blocks % tasks.ranges;
    const int64_t blocks = std::min(tasks.blocks - block, end - begin);
    build.convolve(c,
                   {begin / (tasks.blocks * tasks.ranges), block, block + blocks, range * tasks.outputs,
                    std::min(c.outputs, (range + 1) * tasks.outputs)},
                   scratch);
    begin += blocks;
  }
}

}  // namespace

const std::vector<ConvolutionBuild>& convolution_builds() {
  static const std::vector<ConvolutionBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, cpu::avx512::convolve, cpu::avx512::convolve_weight, 12, 32},
    {CpuTier::kAvx2, cpu::avx2::convolve, cpu::avx2::convolve_weight, 6, 16},
#endif
    {CpuTier::kGeneric, cpu::generic::convolve, cpu::generic::convolve_weight, 1, 1}
  };
  return builds;
}

const ConvolutionBuild& convolution_build() {
  static const ConvolutionBuild& build =
      *std::find_if(convolution_builds().begin(), convolution_builds().end(),
                    [](const ConvolutionBuild& each) { return each.tier <= cpu_tier(); });
  return build;
}

bool is_computable(const cpu::Convolution& c) {
  return is_within(c, cpu::kConvolutionSource / block_channels(c));
}

bool is_computable(const cpu::ConvolutionWeight& c) { return is_within(c, kWeightWindow); }

void convolution(std::vector<cpu::Convolution> passes, const ConvolutionBuild& build) {
  int64_t products = 0;
  for (cpu::Convolution& c : passes) {
    TORCH_CHECK(is_computable(c), "convolution: a kernel of ", taps_of(c),
                " taps reaches over too much of the ", "source for the scratch; ask is_computable() first");
    c = without_gaps(c);
    c.block_channels = block_channels(c);
    products += pixel_count(c) * c.groups * c.outputs * c.channels * std::max<int64_t>(1, taps_of(c));
  }
  const int64_t threads = threads_for(products);
  std::vector<Tasks> tasks;
  int64_t count = 0;
  for (cpu::Convolution& c : passes) {
    // Enough blocks for all threads.
    const int64_t share = divide_up(pixel_count(c) * c.groups, threads);
    choose_blocks(c, std::clamp<int64_t>(share, 48, cpu::kConvolutionPixels),
                  cpu::kConvolutionSource / c.block_channels);
    tasks.push_back(tasks_of(c, build, threads));
    count += tasks.back().count;
  }
  at::parallel_for(0, count, divide_up(count, threads), [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (const auto i : c10::irange(passes.size())) {
      const int64_t from = std::max(begin, first), to = std::min(end, first + tasks[i].count);
      if (from < to) run(passes[i], tasks[i], build, from - first, to - first);
      first += tasks[i].count;
    }
  });
}

void convolution_weight(cpu::ConvolutionWeight c, const ConvolutionBuild& build) {
  TORCH_CHECK(is_computable(c), "convolution_weight: a kernel of ", taps_of(c),
              " taps reaches over too much of ", "the source for the scratch; ask is_computable() first");
  choose_blocks(c, cpu::kConvolutionChain, kWeightWindow);
  const int64_t threads = threads_for(pixel_count(c) * c.groups * c.outputs * c.channels * taps_of(c));
  const WeightParts parts = weight_parts_of(c, build, threads);
  const int64_t count = c.groups * parts.channel_parts * parts.output_parts;
  at::parallel_for(0, count, divide_up(count, threads), [&](int64_t begin, int64_t end) {
    const cpu::ConvolutionWeightScratch scratch = scratch_for(c, parts, build);
    for (const auto task : c10::irange(begin, end)) {
      const int64_t output = task % parts.output_parts * parts.outputs;
      const int64_t channel = task / parts.output_parts % parts.channel_parts * parts.channels;
      build.convolve_weight(c,
                            {task / (parts.output_parts * parts.channel_parts), channel,
                             std::min(c.channels, channel + parts.channels), output,
                             std::min(c.outputs, output + parts.outputs)},
                            scratch);
    }
  });
}

std::vector<cpu::Convolution> adjoint(const cpu::Convolution& c) {
  cpu::Convolution turned = c;
  std::swap(turned.channels, turned.outputs);
  std::swap(turned.weight.image_stride, turned.weight.channel_stride);
  std::vector<cpu::Convolution> passes = {turned};
  for (const auto a : c10::irange(3)) {
    // Position y is reached from result i by tap t if y = origin + i * step + t * dilation. For the positions
    // phase + j * step these are the taps first + m * every, and i = j + (phase - origin - t * dilation) / step.
    const cpu::Axis& axis = c.axes[a];
    const int64_t every = axis.step / std::gcd(axis.step, axis.dilation);
    std::vector<cpu::Convolution> split;
    for (const auto phase : c10::irange(std::min(axis.step, axis.size))) {
      int64_t first = 0;
      while (first < every && (phase - axis.origin - first * axis.dilation) % axis.step != 0) ++first;
      const int64_t taps = first < std::min(every, axis.taps) ? divide_up(axis.taps - first, every) : 0;
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
