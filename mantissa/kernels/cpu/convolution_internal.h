#pragma once

// Convolution without a matrix of patches, written once for all vector tiers. This header follows the rules
// of gemm_blocked_internal.h. The part of the source that a block of results needs is widened into scratch
// once: channels are adjacent, with zeros around the image. There the taps of one row of the kernel are one
// run of adjacent values, at the same distance from every pixel. Micro-tiles are pixels x channels of the
// result.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "mantissa/kernels/cpu/convolution_kernel.h"
#include "mantissa/kernels/cpu/convolution_window_internal.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/micro_tile_cost_internal.h"

namespace mantissa::kernels::cpu {

/// Positions along an axis, and the taps to use for them.
struct Stretch {
  Range positions, taps;
};

/// The positions of a block along an axis, in stretches that read the same taps inside of the source. If
/// there would be too many, there is one stretch with all taps.
struct Stretches {
  static constexpr int64_t kMaxStretches = 8;
  int64_t count = 0;
  Stretch all[kMaxStretches] = {};
};

template <class V>
Stretches stretches_of(const Axis& axis, const Range& positions) {
  Stretches stretches;
  for (int64_t i = positions.begin; i < positions.end; ++i) {
    const int64_t at = axis.origin + i * axis.step;
    Range taps{0, axis.taps};
    while (taps.begin < taps.end && at + taps.begin * axis.dilation < 0) ++taps.begin;
    while (taps.begin < taps.end && at + (taps.end - 1) * axis.dilation >= axis.size) --taps.end;
    Stretch* const open = stretches.count > 0 ? &stretches.all[stretches.count - 1] : nullptr;
    if (open != nullptr && open->taps.begin == taps.begin && open->taps.end == taps.end) {
      open->positions.end = i + 1;
      continue;
    }
    if (stretches.count == Stretches::kMaxStretches) return {1, {{positions, {0, axis.taps}}}};
    stretches.all[stretches.count++] = {{i, i + 1}, taps};
  }
  return stretches;
}

/// For each result of the box at these positions along the first two axes, stores where its first tap lies in
/// the window and where it is written. Returns the number of results.
template <class V>
int64_t find_pixels(const BlockedConvolution& c, const Box& box, const Range& depths, const Range& heights,
                    const Window& window, int64_t* source_at, int64_t* out_at) {
  const int64_t widths = box.end[3] - box.begin[3];
  int64_t count = 0;
  for (int64_t n = box.begin[0]; n < box.end[0]; ++n)
    for (int64_t d = depths.begin; d < depths.end; ++d)
      for (int64_t h = heights.begin; h < heights.end; ++h) {
        const int64_t row =
            ((n - box.begin[0]) * window.size[0] + (d - box.begin[1]) * c.axes[0].step) * window.size[1] +
            (h - box.begin[2]) * c.axes[1].step;
        const int64_t out = n * c.out.image_stride + d * c.out.strides[0] + h * c.out.strides[1] +
                            box.begin[3] * c.out.strides[2];
        for (int64_t w = 0; w < widths; ++w, ++count) {
          source_at[count] = row * window.row() + w * c.axes[2].step * window.channels;
          out_at[count] = out + w * c.out.strides[2];
        }
      }
  return count;
}

/// The taps of a pixel: `count` runs of `length` adjacent values, and the position of each run in the packed
/// panel, in steps.
struct Runs {
  int64_t count = 0, length = 0;
  int64_t offsets[kConvolutionDepth] = {}, packed[kConvolutionDepth] = {};
};

using Adjacent = std::integral_constant<int64_t, 1>;

/// Finds the runs of these taps along the first two axes, and of all taps along the last one.
template <class V>
void find_runs(const Axis* axes, const Range& depths, const Range& heights, const Window& window,
               Runs& runs) {
  const bool adjacent = axes[2].dilation == 1;
  const int64_t in_row = adjacent ? least<V>(axes[2].taps, 1) : axes[2].taps;
  runs.length = (adjacent ? axes[2].taps : 1) * window.channels;
  runs.count = 0;
  for (int64_t d = depths.begin; d < depths.end; ++d)
    for (int64_t h = heights.begin; h < heights.end; ++h)
      for (int64_t w = 0; w < in_row; ++w) {
        runs.packed[runs.count] = ((d * axes[1].taps + h) * in_row + w) * runs.length;
        runs.offsets[runs.count++] =
            (d * axes[0].dilation * window.size[1] + h * axes[1].dilation) * window.row() +
            w * axes[2].dilation * window.channels;
      }
}
template <class V>
void find_runs(const Axis* axes, const Window& window, Runs& runs) {
  find_runs<V>(axes, {0, axes[0].taps}, {0, axes[1].taps}, window, runs);
}

/// Like micro_kernel(), with pixels as rows. Their values come from `source` + at[row] + the runs' offsets,
/// `step` apart within a run; b is packed as for micro_kernel(). kSharedRows rows share one pointer and are
/// `pitch` apart, because a pointer for each of 12 rows would leave no registers for the loop.
template <class V, int kTileRows, int kTileVectors, int kSharedRows, class Step>
void multiply_runs(const Runs& runs, Step step, const float* source, const int64_t* at, int64_t pitch,
                   const float* packed, float* to, bool accumulate) {
  using Float = typename V::Float;
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  // Indexed by constants only: see micro_kernel().
  const auto run = [&]<int... kSum, int... kVector, int... kPointer>(
      std::integer_sequence<int, kSum...>, std::integer_sequence<int, kVector...>,
      std::integer_sequence<int, kPointer...>) __attribute__((always_inline)) {
    Float sums[] = {((void)kSum, V::zero())...};
    for (int64_t i = 0; i < runs.count; ++i) {
      const float* const end = source + runs.offsets[i] + runs.length;
      const float* b = packed + runs.packed[i] * kNR;
      const float* const rows[] = {(end + at[int64_t{kPointer} * kSharedRows])...};
      int64_t next = pitch - runs.length;
#pragma GCC unroll 2
      for (int64_t k = -runs.length; k != 0; k += step, next += step) {
        const Float columns[] = {V::load(b + kVector * V::kLanes)...};
        ((sums[kSum] = V::fma(V::broadcast(rows[kSum / kTileVectors / kSharedRows] +
                                           (kSum / kTileVectors % kSharedRows ? next : k)),
                              columns[kSum % kTileVectors], sums[kSum])),
         ...);
        b += kNR;
      }
    }
    if (accumulate)
      ((sums[kSum] =
            V::add(V::load(to + kSum / kTileVectors * kNR + kSum % kTileVectors * V::kLanes), sums[kSum])),
       ...);
    else  // a chain that underflows to -0 becomes 0, with or without zeros of the border
      ((sums[kSum] = V::add(V::zero(), sums[kSum])), ...);
    (V::store(to + kSum / kTileVectors * kNR + kSum % kTileVectors * V::kLanes, sums[kSum]), ...);
  };
  run(std::make_integer_sequence<int, kTileRows * kTileVectors>{},
      std::make_integer_sequence<int, kTileVectors>{},
      std::make_integer_sequence<int, kTileRows / kSharedRows>{});
}

/// multiply_runs() for each number of rows and vectors: see MicroKernels.
template <class V, class Step, typename = std::make_integer_sequence<int, V::kMR * V::kVectors>>
struct RunMicroKernels;
template <class V, class Step, int... kIndex>
struct RunMicroKernels<V, Step, std::integer_sequence<int, kIndex...>> {
  using Multiply = void(const Runs& runs, Step step, const float* source, const int64_t* at, int64_t pitch,
                        const float* b, float* to, bool accumulate);
  static constexpr Multiply* kOf[] = {
      &multiply_runs<V, kIndex / V::kVectors + 1, kIndex % V::kVectors + 1, 1, Step>...};

  static void multiply(int64_t rows, int64_t vectors, const Runs& runs, Step step, const float* source,
                       const int64_t* at, int64_t pitch, const float* b, float* to, bool accumulate) {
    bool in_pairs = rows == V::kMR && vectors == V::kVectors;
    for (int64_t row = 0; row < rows && in_pairs; row += 2) in_pairs = at[row + 1] - at[row] == pitch;
    if (in_pairs)
      return multiply_runs<V, V::kMR, V::kVectors, 2, Step>(runs, step, source, at, pitch, b, to, accumulate);
    kOf[(rows - 1) * V::kVectors + vectors - 1](runs, step, source, at, pitch, b, to, accumulate);
  }
};

/// Packs one panel to to[k * kNR + lane], where k is (tap, channel): the results' channels [output, output +
/// lanes) and the source's channels [channel, channel + channels).
template <class V, class Source>
void pack_taps(const BlockedConvolution& c, int64_t group, int64_t output, int64_t lanes, int64_t channel,
               int64_t channels, float* to) {
  constexpr int kNR = V::kVectors * V::kLanes;
  constexpr int64_t kChunk = 128;
  const ConstImages& weight = c.weight;
  const int64_t taps[] = {c.axes[0].taps, c.axes[1].taps, c.axes[2].taps},
                count = taps[0] * taps[1] * taps[2];
  const auto* const from = static_cast<const typename Source::Storage*>(weight.data) +
                           group * weight.group_stride + output * weight.image_stride +
                           channel * weight.channel_stride;
  // If the taps of a kernel are adjacent, perhaps in reverse, they are read in memory order and then sorted
  // by tap.
  const int64_t sign = weight.strides[2] < 0 ? -1 : 1;
  const bool dense = (taps[2] == 1 || weight.strides[2] == sign) &&
                     (taps[1] == 1 || weight.strides[1] == sign * taps[2]) &&
                     (taps[0] == 1 || weight.strides[0] == sign * taps[2] * taps[1]);
  if (dense && count > 1 && count <= kChunk && weight.channel_stride != 1 && weight.image_stride != 1) {
    alignas(64) float rows[kChunk * kNR];
    const auto* const lowest = sign < 0 ? from - (count - 1) : from;
    const int64_t step = weight.channel_stride == count ? kChunk / count : 1;
    for (int64_t first = 0; first < channels; first += step) {
      const int64_t here = least<V>(step, channels - first);
      pack_micro_panel<V, kNR, Source>(lowest + first * weight.channel_stride, weight.image_stride, 1, lanes,
                                       here * count, rows);
      const float* row = rows;
      for (int64_t i = first; i < first + here; ++i)
        for (int64_t tap = 0; tap < count; ++tap, row += kNR) {
          float* const out = to + ((sign < 0 ? count - 1 - tap : tap) * channels + i) * kNR;
          for (int v = 0; v < V::kVectors; ++v) V::store(out + v * V::kLanes, V::load(row + v * V::kLanes));
        }
    }
    return;
  }
  for (int64_t d = 0; d < taps[0]; ++d)
    for (int64_t h = 0; h < taps[1]; ++h)
      for (int64_t w = 0; w < taps[2]; ++w, to += channels * kNR)
        pack_micro_panel<V, kNR, Source>(
            from + d * weight.strides[0] + h * weight.strides[1] + w * weight.strides[2], weight.image_stride,
            weight.channel_stride, lanes, channels, to);
}

/// Writes finished sums, [pixel][kNR], to the results [output, output + lanes) of `count` pixels.
template <class V, class Out>
void finish_pixels(const BlockedConvolution& c, int64_t group, int64_t output, int64_t lanes,
                   const int64_t* out_at, int64_t count, const float* sums) {
  using Storage = typename Out::Storage;
  constexpr int kNR = V::kVectors * V::kLanes;
  const int64_t channel_stride = c.out.channel_stride;
  auto* const out = static_cast<Storage*>(c.out.data) + group * c.out.group_stride + output * channel_stride;
  const auto bias_of = [&](int64_t first, int64_t here) {
    return c.bias == nullptr
               ? V::zero()
               : load_from<V>({c.bias, c.bias_element, 0, 0, 0}, Element::kFloat32,
                              (group * c.outputs + output + first) * c.bias_stride, c.bias_stride, here);
  };
  if (channel_stride == 1 && lanes == 2 * V::kLanes) {
    const typename V::Float biases[] = {bias_of(0, V::kLanes), bias_of(V::kLanes, V::kLanes)};
    // store_pair() requires NaNs whose last 16 bits are 0. Source and weight have no others; a float32 bias
    // may.
    if (!V::is_nan(biases[0]) && !V::is_nan(biases[1])) {
      for (int64_t i = 0; i < count; ++i) {
        const auto first = V::load(sums + i * kNR), second = V::load(sums + i * kNR + V::kLanes);
        if (c.bias == nullptr)
          Out::store_pair(out + out_at[i], first, second);
        else
          Out::store_pair(out + out_at[i], V::add(first, biases[0]), V::add(second, biases[1]));
      }
      return;
    }
  }
  for (int64_t v = 0; v * V::kLanes < lanes; ++v) {
    const int64_t first = v * V::kLanes, here = least<V>(lanes - first, V::kLanes);
    const auto bias = bias_of(first, here);
    const auto value = [&](int64_t pixel) __attribute__((always_inline)) {
      const auto sum = V::load(sums + pixel * kNR + first);
      return c.bias == nullptr ? sum : V::add(sum, bias);
    };
    if (channel_stride == 1) {
      for (int64_t i = 0; i < count; ++i) {
        if (here == V::kLanes)
          Out::store(out + out_at[i] + first, value(i));
        else
          Out::scatter(out + out_at[i] + first, 1, here, value(i));
      }
      continue;
    }
    for (int64_t i = 0; i < count; i += V::kLanes) {
      const int64_t pixels = least<V>(count - i, V::kLanes);
      typename V::Float rows[V::kLanes];
#pragma GCC unroll 16
      for (int64_t row = 0; row < V::kLanes; ++row) rows[row] = value(i + row);
      V::transpose(rows);
      bool adjacent = pixels == V::kLanes;
      for (int64_t pixel = 1; pixel < pixels; ++pixel) adjacent &= out_at[i + pixel] == out_at[i] + pixel;
      for (int64_t lane = 0; lane < here; ++lane) {
        Storage* const row = out + (first + lane) * channel_stride;
        if (adjacent) {
          Out::store(row + out_at[i], rows[lane]);
          continue;
        }
        alignas(64) Storage values[V::kLanes];
        Out::store(values, rows[lane]);
        for (int64_t pixel = 0; pixel < pixels; ++pixel) row[out_at[i + pixel]] = values[pixel];
      }
    }
  }
}

/// Pixels that read the same rows of the kernel inside of the source.
struct Slice {
  int64_t pixels;
  Range depths, heights;  ///< the rows that they read
};

/// One block of results and the state of its computation.
template <class V>
struct Block {
  const BlockedConvolution& c;
  const ConvolutionPart& part;
  const ConvolutionScratch& scratch;
  Window window = {};
  int64_t pitch = 0;   ///< distance of adjacent pixels in a row
  bool skips = false;  ///< whether slices leave out taps
  bool finite = true;  ///< whether the weights packed so far are finite
  int64_t slice_count = 0;
  Slice slices[Stretches::kMaxStretches * Stretches::kMaxStretches] = {};
  Runs runs = {};
};

/// Sorts the block's pixels by the rows of the kernel that lie in the border for them, unless the smaller
/// micro-tiles cost more than skipping these rows saves.
template <class V>
void find_slices(const Box& box, Block<V>& block) {
  const BlockedConvolution& c = block.c;
  const Stretch all_depths{positions_of<V>(box, 0), {0, c.axes[0].taps}},
      all_heights{positions_of<V>(box, 1), {0, c.axes[1].taps}};
  Stretches depths = stretches_of<V>(c.axes[0], all_depths.positions),
            heights = stretches_of<V>(c.axes[1], all_heights.positions);
  const int64_t in_row = (box.end[0] - box.begin[0]) * (box.end[3] - box.begin[3]);
  const auto size = [](const Range& range) { return range.end - range.begin; };
  const auto cost = [&](const Stretch& d, const Stretch& h) {
    const int64_t pixels = size(d.positions) * size(h.positions) * in_row;
    return size(d.taps) * size(h.taps) * micro_tiles_cost<V>(pixels, V::kMR, V::kVectors);
  };
  int64_t apart = 0;
  for (int64_t d = 0; d < depths.count; ++d)
    for (int64_t h = 0; h < heights.count; ++h) apart += cost(depths.all[d], heights.all[h]);
  block.skips = apart < cost(all_depths, all_heights);
  if (!block.skips) depths = {1, {all_depths}}, heights = {1, {all_heights}};
  block.slice_count = 0;
  int64_t pixels = 0;
  for (int64_t d = 0; d < depths.count; ++d)
    for (int64_t h = 0; h < heights.count; ++h) {
      const Stretch &in_depth = depths.all[d], &in_height = heights.all[h];
      const int64_t found = find_pixels<V>(c, box, in_depth.positions, in_height.positions, block.window,
                                           block.scratch.source_at + pixels, block.scratch.out_at + pixels);
      block.slices[block.slice_count++] = {found, in_depth.taps, in_height.taps};
      pixels += found;
    }
}

/// Multiplies a packed panel by a block: the results [output, output + lanes). Unless the weight is finite,
/// the zeros of the border are multiplied, too, because 0 times Inf is NaN.
template <class V>
void multiply_block(Block<V>& block, int64_t output, int64_t lanes, bool first, bool last, const float* panel,
                    float* waiting) {
  constexpr int kNR = V::kVectors * V::kLanes;
  // A multiple of MR and of a vector's lanes.
  constexpr int64_t kChunk = 48;
  alignas(64) float finished[kChunk * kNR];
  const int64_t vectors = (lanes + V::kLanes - 1) / V::kLanes;
  const BlockedConvolution& c = block.c;
  const int64_t* source_at = block.scratch.source_at;
  const int64_t* out_at = block.scratch.out_at;
  for (int64_t s = 0; s < block.slice_count; ++s) {
    const Slice& slice = block.slices[s];
    if (block.finite)
      find_runs<V>(c.axes, slice.depths, slice.heights, block.window, block.runs);
    else
      find_runs<V>(c.axes, block.window, block.runs);
    for (int64_t i = 0; i < slice.pixels; i += kChunk) {
      const int64_t count = least<V>(kChunk, slice.pixels - i);
      const bool only = first && last;
      float* const sums = only ? finished : waiting;
      for (int64_t row = 0; row < count; row += V::kMR)
        RunMicroKernels<V, Adjacent>::multiply(least<V>(count - row, V::kMR), vectors, block.runs, Adjacent{},
                                               block.scratch.source, source_at + row, block.pitch, panel,
                                               sums + row * kNR, !first);
      if (last)
        with_elements<V>(c.out.element, c.out.element, [&](auto out) {
          finish_pixels<V, decltype(out)>(c, block.part.group, output, lanes, out_at, count, sums);
        });
      source_at += count;
      out_at += count;
      if (!only) waiting += count * kNR;
    }
  }
}

/// True if a panel of `steps` has neither Inf nor NaN in its first `lanes` lanes.
template <class V>
bool is_finite(const float* panel, int64_t steps, int64_t lanes) {
  constexpr int64_t kNR = V::kVectors * V::kLanes, kChunk = 4;
  typename V::Float zeros[kChunk] = {V::zero(), V::zero(), V::zero(), V::zero()};
  for (int64_t lane = 0; lane < lanes; lane += V::kLanes) {
    const float* const from = panel + lane;
    int64_t k = 0;
    for (; k + kChunk <= steps; k += kChunk)
#pragma GCC unroll 4
      for (int64_t i = 0; i < kChunk; ++i)
        zeros[i] = V::fma(V::load(from + (k + i) * kNR), V::zero(), zeros[i]);
    for (; k < steps; ++k) zeros[0] = V::fma(V::load(from + k * kNR), V::zero(), zeros[0]);
  }
  return !V::is_nan(V::add(V::add(zeros[0], zeros[1]), V::add(zeros[2], zeros[3])));
}

template <class V>
void convolve_with(const BlockedConvolution& c, const ConvolutionPart& part,
                   const ConvolutionScratch& scratch) {
  constexpr int kNR = V::kVectors * V::kLanes;
  const int64_t taps = c.axes[0].taps * c.axes[1].taps * c.axes[2].taps;
  const int64_t outputs = part.output_end - part.output_begin;
  const int64_t padded = (outputs + kNR - 1) / kNR * kNR;
  const bool stays = scratch.stays;
  const bool waits = c.block_channels < c.channels;
  const int64_t together = waits ? kConvolutionColumns : outputs;
  Block<V> block{c, part, scratch};
  const auto panel_of = [&](int64_t index, int64_t output, int64_t lanes, int64_t channel, int64_t channels) {
    float* const panel =
        scratch.weights + (stays ? (padded * channel + (output - part.output_begin) * channels) * taps : 0);
    if (!stays || index == part.block_begin) {
      with_elements<V>(c.weight.element, c.source.element, [&](auto source) {
        pack_taps<V, decltype(source)>(c, part.group, output, lanes, channel, channels, panel);
      });
      // If panels are kept, a later block may skip taps, too.
      const bool matters = block.skips || (stays && part.block_end - part.block_begin > 1);
      if (matters) block.finite = block.finite && is_finite<V>(panel, taps * channels, lanes);
    }
    return panel;
  };

  for (int64_t index = part.block_begin; index < part.block_end; ++index) {
    const Box box = box_of<V>(c, index);
    for (int64_t begin = part.output_begin; begin < part.output_end; begin += together) {
      const int64_t end = least<V>(begin + together, part.output_end);
      for (int64_t channel = 0; channel < c.channels; channel += c.block_channels) {
        const int64_t channels = least<V>(c.block_channels, c.channels - channel);
        // Without taps there is no window, and the results are the bias.
        block.window = taps > 0 ? window_of<V>(c.axes, box, channels) : Window{};
        block.pitch = c.axes[2].step * channels;
        find_slices<V>(box, block);
        if (taps > 0)
          widen_window<V>(c.axes, c.source, part.group, channel, box, block.window, scratch.source);
        for (int64_t output = begin; output < end; output += kNR) {
          const int64_t lanes = least<V>(kNR, end - output);
          const float* const panel = panel_of(index, output, lanes, channel, channels);
          multiply_block<V>(block, output, lanes, channel == 0, channel + channels == c.channels, panel,
                            scratch.sums + (output - begin) * (kConvolutionPixels + 48));
        }
      }
    }
  }
}

}  // namespace mantissa::kernels::cpu
