#pragma once

// Depthwise and grouped convolutions. This header follows the rules of convolution_internal.h. Vectors are
// adjacent channels of the window, and a weight is used for several pixels while it is in a register.

#include <cstdint>
#include <cstring>
#include <utility>

#include "mantissa/kernels/cpu/convolution_depthwise_rows_internal.h"
#include "mantissa/kernels/cpu/convolution_internal.h"

namespace mantissa::kernels::cpu {

/// Computes to[pixel * kNR + lane] = the sum over taps of source[at[pixel] + tap] weights[tap], for kPixels
/// pixels and one vector of channels. `pitch` is the distance of taps in a run.
template <class V, int kPixels>
void multiply_depthwise(const Runs& runs, int64_t pitch, const float* source, const int64_t* at,
                        const float* weights, float* to) {
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  // Indexed by constants only: see micro_kernel().
  const auto run = [&]<int... kPixel>(std::integer_sequence<int, kPixel...>) __attribute__((always_inline)) {
    typename V::Float sums[] = {((void)kPixel, V::zero())...};
    const float* const pixels[] = {(source + at[kPixel])...};
    for (int64_t i = 0; i < runs.count; ++i)
      for (int64_t k = runs.offsets[i]; k < runs.offsets[i] + runs.length; k += pitch) {
        const auto weight = V::load(weights);
        ((sums[kPixel] = V::fma(weight, V::load(pixels[kPixel] + k), sums[kPixel])), ...);
        weights += kNR;
      }
    (V::store(to + kPixel * kNR, sums[kPixel]), ...);
  };
  run(std::make_integer_sequence<int, kPixels>{});
}

/// Computes to[to_at[pixel] + lane] = the sum over `taps` of source[at[pixel] + tap] weights[tap], for
/// kPixels pixels of one phase and one vector of channels.
template <class V, int kPixels>
void multiply_turned(const int64_t* source_offsets, const int64_t* weight_offsets, int64_t taps,
                     const float* source, const int64_t* at, const float* weights, float* to,
                     const int64_t* to_at) {
  const auto run = [&]<int... kPixel>(std::integer_sequence<int, kPixel...>) __attribute__((always_inline)) {
    typename V::Float sums[] = {((void)kPixel, V::zero())...};
    const float* const pixels[] = {(source + at[kPixel])...};
    for (int64_t i = 0; i < taps; ++i) {
      const auto weight = V::load(weights + weight_offsets[i]);
      const int64_t k = source_offsets[i];
      ((sums[kPixel] = V::fma(weight, V::load(pixels[kPixel] + k), sums[kPixel])), ...);
    }
    (V::store(to + to_at[kPixel], sums[kPixel]), ...);
  };
  run(std::make_integer_sequence<int, kPixels>{});
}

/// The micro-kernels above for each number of pixels that an edge leaves, at [number - 1]. Larger numbers would
/// not fit into the registers.
constexpr int kDepthwisePixels = 8;
template <class V, typename = std::make_integer_sequence<int, kDepthwisePixels>>
struct DepthwiseMicroKernels;
template <class V, int... kPixels>
struct DepthwiseMicroKernels<V, std::integer_sequence<int, kPixels...>> {
  using Multiply = void(const Runs& runs, int64_t pitch, const float* source, const int64_t* at,
                        const float* weights, float* to);
  using MultiplyTurned = void(const int64_t* source_offsets, const int64_t* weight_offsets, int64_t taps,
                              const float* source, const int64_t* at, const float* weights, float* to,
                              const int64_t* to_at);
  static constexpr Multiply* kMultiply[] = {&multiply_depthwise<V, kPixels + 1>...};
  static constexpr MultiplyTurned* kMultiplyTurned[] = {&multiply_turned<V, kPixels + 1>...};
};

/// Divides and rounds towards minus infinity; the divisor is positive.
template <class V>
int64_t floor_of(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/// Returns the window of the source that the box's results read.
template <class V>
Window turned_window_of(const BlockedConvolution& c, const Box& box, int64_t channels) {
  Window window{{}, {}, channels};
  for (int a = 0; a < 3; ++a) {
    const Axis& axis = c.forward[a];
    const int64_t lowest = box.begin[a + 1] - axis.origin - (axis.taps - 1) * axis.dilation;
    const int64_t last = floor_of<V>(box.end[a + 1] - 1 - axis.origin, axis.step);
    window.first[a] = floor_of<V>(lowest + axis.step - 1, axis.step);
    window.size[a] = last < window.first[a] ? 1 : last - window.first[a] + 1;
  }
  return window;
}

template <class V>
void find_turned_taps(const Axis* axes, const Window& window, PhasedTaps& taps) {
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  // Calls f for the taps of the axis's phase, the last one first, so that positions ascend.
  const auto for_each_tap = [&](int a, int64_t phase, const auto& f) {
    for (int64_t tap = axes[a].taps - 1; tap >= 0; --tap) {
      const int64_t distance = phase - axes[a].origin - tap * axes[a].dilation;
      if (distance % axes[a].step == 0) f(tap, distance / axes[a].step);
    }
  };
  int64_t index = 0, count = 0;
  for (int64_t d = 0; d < axes[0].step; ++d)
    for (int64_t h = 0; h < axes[1].step; ++h)
      for (int64_t w = 0; w < axes[2].step; ++w) {
        taps.begin[index++] = count;
        for_each_tap(0, d, [&](int64_t depth, int64_t depth_at) {
          for_each_tap(1, h, [&](int64_t row, int64_t row_at) {
            for_each_tap(2, w, [&](int64_t column, int64_t column_at) {
              taps.source[count] =
                  (depth_at * window.size[1] + row_at) * window.row() + column_at * window.channels;
              taps.weight[count++] = ((depth * axes[1].taps + row) * axes[2].taps + column) * kNR;
            });
          });
        });
      }
  taps.begin[index] = count;
}

/// The results of a box in chunks of kChunk; each chunk is sorted by phase.
struct TurnedPixels {
  static constexpr int64_t kChunk = 48, kMaxPixels = kConvolutionPixels + kChunk;
  int64_t count = 0, runs = 0;
  int64_t to_at[kMaxPixels] = {};                           ///< of a chunk's sums, in the order of source_at
  int64_t phase[kMaxPixels] = {}, length[kMaxPixels] = {};  ///< of each run of one phase
};

/// For each result of the box, stores the position of its phase's first pixel in the window, sorted, and the
/// position where the result is written.
template <class V>
void find_turned_pixels(const BlockedConvolution& c, const Box& box, const Window& window, int64_t* source_at,
                        int64_t* out_at, TurnedPixels& pixels) {
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  const Axis* const axes = c.forward;
  int64_t at[TurnedPixels::kChunk], phase[TurnedPixels::kChunk], here = 0;
  pixels.count = pixels.runs = 0;
  const auto sort = [&] {
    const int64_t first = pixels.count - here;
    for (int64_t sorted = 0, least_phase = -1; sorted < here; ++pixels.runs) {
      int64_t now = kTurnedPhases;
      for (int64_t i = 0; i < here; ++i)
        if (phase[i] > least_phase && phase[i] < now) now = phase[i];
      const int64_t before = sorted;
      for (int64_t i = 0; i < here; ++i) {
        if (phase[i] != now) continue;
        source_at[first + sorted] = at[i];
        pixels.to_at[first + sorted++] = i * kNR;
      }
      pixels.phase[pixels.runs] = least_phase = now;
      pixels.length[pixels.runs] = sorted - before;
    }
    here = 0;
  };
  for (int64_t n = 0; n < box.end[0] - box.begin[0]; ++n)
    for (int64_t d = box.begin[1]; d < box.end[1]; ++d)
      for (int64_t h = box.begin[2]; h < box.end[2]; ++h) {
        const int64_t row = (n * window.size[0] + d / axes[0].step - window.first[0]) * window.size[1] +
                            h / axes[1].step - window.first[1];
        const int64_t of_row = (d % axes[0].step * axes[1].step + h % axes[1].step) * axes[2].step;
        const int64_t out =
            (box.begin[0] + n) * c.out.image_stride + d * c.out.strides[0] + h * c.out.strides[1];
        for (int64_t w = box.begin[3]; w < box.end[3]; ++w) {
          at[here] = row * window.row() + (w / axes[2].step - window.first[2]) * window.channels;
          phase[here++] = of_row + w % axes[2].step;
          out_at[pixels.count++] = out + w * c.out.strides[2];
          if (here == TurnedPixels::kChunk) sort();
        }
      }
  sort();
}

/// Returns a convolution whose panel pack_taps() can pack with all of the weight's taps: in an adjoint,
/// c.axes has the taps of one phase only.
template <class V>
BlockedConvolution with_all_taps(const BlockedConvolution& c) {
  BlockedConvolution whole = c;
  for (int a = 0; a < 3 && c.is_turned; ++a) whole.axes[a] = c.forward[a];
  return whole;
}

/// Computes the adjoint of a strided convolution. One window serves all phases, and their results are written
/// side by side.
template <class V>
void convolve_turned_with(const BlockedConvolution& c, const ConvolutionPart& part,
                          const ConvolutionScratch& scratch) {
  constexpr int kNR = V::kVectors * V::kLanes;
  constexpr int64_t kChunk = TurnedPixels::kChunk;
  alignas(64) float sums[kChunk * kNR];
  PhasedTaps taps;
  TurnedPixels pixels;
  const BlockedConvolution whole = with_all_taps<V>(c);
  for (int64_t index = part.block_begin; index < part.block_end; ++index) {
    const Box box = box_of<V>(c, index);
    Window window{};
    for (int64_t output = part.output_begin; output < part.output_end; output += kNR) {
      const int64_t lanes = least<V>(kNR, part.output_end - output);
      if (lanes != window.channels) {
        window = turned_window_of<V>(c, box, lanes);
        find_turned_pixels<V>(c, box, window, scratch.source_at, scratch.out_at, pixels);
        find_turned_taps<V>(c.forward, window, taps);
      }
      widen_window<V>(c.axes, c.source, 0, output, box, window, scratch.source);
      with_elements<V>(c.weight.element, c.source.element, [&](auto source) {
        pack_taps<V, decltype(source)>(whole, 0, output, lanes, 0, 1, scratch.weights);
      });
      const int64_t* phase = pixels.phase;
      const int64_t* length = pixels.length;
      for (int64_t i = 0; i < pixels.count; i += kChunk) {
        const int64_t count = least<V>(kChunk, pixels.count - i);
        for (int64_t sorted = 0; sorted < count; sorted += *length++) {
          const int64_t begin = taps.begin[*phase], number = taps.begin[*phase + 1] - begin;
          ++phase;
          for (int64_t pixel = sorted; pixel < sorted + *length; pixel += kDepthwisePixels)
            for (int64_t lane = 0; lane < lanes; lane += V::kLanes)
              DepthwiseMicroKernels<V>::kMultiplyTurned[least<V>(sorted + *length - pixel, kDepthwisePixels) -
                                                        1](
                  taps.source + begin, taps.weight + begin, number, scratch.source + lane,
                  scratch.source_at + i + pixel, scratch.weights + lane, sums + lane,
                  pixels.to_at + i + pixel);
        }
        with_elements<V>(c.out.element, c.out.element, [&](auto out) {
          finish_pixels<V, decltype(out)>(c, 0, output, lanes, scratch.out_at + i, count, sums);
        });
      }
    }
  }
}

/// pack_taps() for groups of several channels: to[(tap * kGroup + channel) * kNR + lane].
template <class V, class Source, int kGroup>
void pack_groups(const BlockedConvolution& c, int64_t output, int64_t lanes, float* to) {
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  const ConstImages& weight = c.weight;
  const auto* const data =
      static_cast<const typename Source::Storage*>(weight.data) + output / kGroup * weight.group_stride;
  alignas(64) float values[V::kLanes];
  for (int64_t d = 0; d < c.axes[0].taps; ++d)
    for (int64_t h = 0; h < c.axes[1].taps; ++h)
      for (int64_t w = 0; w < c.axes[2].taps; ++w)
        for (int64_t channel = 0; channel < kGroup; ++channel, to += kNR)
          for (int64_t lane = 0; lane < lanes; lane += kGroup) {
            V::store(values, Source::gather(data + lane / kGroup * weight.group_stride +
                                                channel * weight.channel_stride + d * weight.strides[0] +
                                                h * weight.strides[1] + w * weight.strides[2],
                                            weight.image_stride, kGroup));
            std::memcpy(to + lane, values, kGroup * sizeof(float));
          }
}

/// Computes a depthwise convolution, or groups of kGroup channels with kGroup results each. The channels are
/// adjacent and fill whole vectors; finish_rows() describes the sums.
template <class V, int kGroup>
void convolve_rows_with(const BlockedConvolution& c, const ConvolutionPart& part,
                        const ConvolutionScratch& scratch) {
  constexpr int kNR = V::kVectors * V::kLanes;
  const BlockedConvolution whole = with_all_taps<V>(c);
  Rows rows{c.is_turned, {1, 1, 1}, {1, 1, 1}};
  for (int a = 0; a < 3; ++a) (c.is_turned ? rows.steps : rows.pitches)[a] = whole.axes[a].step;
  const int64_t depth = whole.axes[0].taps * whole.axes[1].taps * whole.axes[2].taps * kGroup;
  const bool stays = scratch.stays;
  PhasedTaps taps;
  for (int64_t index = part.block_begin; index < part.block_end; ++index) {
    const Box box = box_of<V>(c, index);
    Window window{};
    // The window has more channels than a panel: all channels of a pixel that share a cache line are read
    // together.
    for (int64_t output = part.output_begin; output < part.output_end; output += kConvolutionLanes) {
      const int64_t lanes = least<V>(kConvolutionLanes, part.output_end - output);
      if (lanes != window.channels) {
        // Without taps there is no window, and the results are the bias.
        window = depth == 0    ? Window{{}, {}, lanes}
                 : c.is_turned ? turned_window_of<V>(c, box, lanes)
                               : window_of<V>(c.axes, box, lanes);
        if (c.is_turned)
          find_turned_taps<V>(c.forward, window, taps);
        else
          find_taps<V>(c.axes, window, kGroup, taps);
      }
      if (depth > 0) widen_window<V>(c.axes, c.source, 0, output, box, window, scratch.source);
      for (int64_t panel = output; panel < output + lanes; panel += kNR) {
        const int64_t here = least<V>(kNR, output + lanes - panel);
        float* const weights = scratch.weights + (stays ? (panel - part.output_begin) * depth : 0);
        if (!stays || index == part.block_begin)
          with_elements<V>(c.weight.element, c.source.element, [&](auto source) {
            if constexpr (kGroup == 1)
              pack_taps<V, decltype(source)>(whole, 0, panel, here, 0, 1, weights);
            else
              pack_groups<V, decltype(source), kGroup>(c, panel, here, weights);
          });
        finish_rows<V, kGroup>(c, box, window, rows, taps, panel, here, scratch.source + (panel - output),
                               weights);
      }
    }
  }
}

template <class V>
void convolve_groups_with(const BlockedConvolution& c, const ConvolutionPart& part,
                          const ConvolutionScratch& scratch) {
  if (c.channels == 2) return convolve_rows_with<V, 2>(c, part, scratch);
  convolve_rows_with<V, 4>(c, part, scratch);
}

template <class V>
void convolve_depthwise_with(const BlockedConvolution& c, const ConvolutionPart& part,
                             const ConvolutionScratch& scratch) {
  if (c.out.channel_stride == 1 && part.output_end - part.output_begin >= V::kLanes) {
    ConvolutionPart whole = part, rest = part;
    whole.output_end -= (part.output_end - part.output_begin) % V::kLanes;
    rest.output_begin = whole.output_end;
    convolve_rows_with<V, 1>(c, whole, scratch);
    if (rest.output_begin < rest.output_end) convolve_depthwise_with<V>(c, rest, scratch);
    return;
  }
  if (c.is_turned) return convolve_turned_with<V>(c, part, scratch);
  constexpr int kNR = V::kVectors * V::kLanes;
  constexpr int64_t kChunk = 48;
  alignas(64) float sums[kChunk * kNR];
  const int64_t taps = c.axes[0].taps * c.axes[1].taps * c.axes[2].taps;
  Runs runs;
  for (int64_t index = part.block_begin; index < part.block_end; ++index) {
    const Box box = box_of<V>(c, index);
    for (int64_t output = part.output_begin; output < part.output_end; output += kNR) {
      const int64_t lanes = least<V>(kNR, part.output_end - output);
      // Without taps there is no window, and the results are the bias.
      const Window window = taps > 0 ? window_of<V>(c.axes, box, lanes) : Window{};
      if (taps > 0) widen_window<V>(c.axes, c.source, 0, output, box, window, scratch.source);
      with_elements<V>(c.weight.element, c.source.element, [&](auto source) {
        pack_taps<V, decltype(source)>(c, 0, output, lanes, 0, 1, scratch.weights);
      });
      const int64_t pixels = find_pixels<V>(c, box, positions_of<V>(box, 0), positions_of<V>(box, 1), window,
                                            scratch.source_at, scratch.out_at);
      runs.count = 0;
      if (taps > 0) find_runs<V>(c.axes, window, runs);
      for (int64_t i = 0; i < pixels; i += kChunk) {
        const int64_t count = least<V>(kChunk, pixels - i);
        for (int64_t pixel = 0; pixel < count; pixel += kDepthwisePixels)
          for (int64_t lane = 0; lane < lanes; lane += V::kLanes)
            DepthwiseMicroKernels<V>::kMultiply[least<V>(count - pixel, kDepthwisePixels) - 1](
                runs, lanes, scratch.source + lane, scratch.source_at + i + pixel, scratch.weights + lane,
                sums + pixel * kNR + lane);
        with_elements<V>(c.out.element, c.out.element, [&](auto out) {
          finish_pixels<V, decltype(out)>(c, 0, output, lanes, scratch.out_at + i, count, sums);
        });
      }
    }
  }
}

}  // namespace mantissa::kernels::cpu
