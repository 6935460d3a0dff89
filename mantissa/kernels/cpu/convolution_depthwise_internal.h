#pragma once

// Convolutions whose channels do not meet, on the terms of convolution_internal.h: vectors are adjacent
// channels of the window, and a weight is used for several pixels while it is in a register.

#include <cstdint>
#include <utility>

#include "mantissa/kernels/cpu/convolution_internal.h"
#include "mantissa/kernels/cpu/convolution_weight_internal.h"

namespace mantissa::cpu {

/// to[pixel * kColumns + lane] = the sum over taps of source[at[pixel] + tap] weights[tap], of kPixels pixels
/// and one vector of channels; `pitch` is the taps' distance in a run.
template <class V, int kPixels>
void multiply_depthwise(const Runs& runs, int64_t pitch, const float* source, const int64_t* at,
                        const float* weights, float* to) {
  constexpr int64_t kColumns = V::kVectors * V::kLanes;
  // Indexed by constants alone: see multiply_tile().
  const auto run = [&]<int... kPixel>(std::integer_sequence<int, kPixel...>) __attribute__((always_inline)) {
    typename V::Float sums[] = {((void)kPixel, V::zero())...};
    const float* const pixels[] = {(source + at[kPixel])...};
    for (int64_t i = 0; i < runs.count; ++i)
      for (int64_t k = runs.offsets[i]; k < runs.offsets[i] + runs.length; k += pitch) {
        const auto weight = V::load(weights);
        ((sums[kPixel] = V::fma(weight, V::load(pixels[kPixel] + k), sums[kPixel])), ...);
        weights += kColumns;
      }
    (V::store(to + kPixel * kColumns, sums[kPixel]), ...);
  };
  run(std::make_integer_sequence<int, kPixels>{});
}

/// to[tap * kColumns + lane] = (added to what is there, if `accumulate`) the sum over the runs' pixels of
/// window[taps[tap] + pixel] gradient[pixel], of kTaps taps and one vector of channels. The window's pixels
/// are `step` apart, the gradient's `pitch`.
template <class V, int kTaps>
void add_taps(const Runs& runs, int64_t step, int64_t pitch, const int64_t* taps, const float* window,
              const float* gradient, float* to, bool accumulate) {
  constexpr int64_t kColumns = V::kVectors * V::kLanes;
  const auto run = [&]<int... kTap>(std::integer_sequence<int, kTap...>) __attribute__((always_inline)) {
    typename V::Float sums[] = {((void)kTap, V::zero())...};
    const float* const from[] = {(window + taps[kTap])...};
    for (int64_t i = 0; i < runs.count; ++i)
      for (int64_t at = runs.offsets[i]; at < runs.offsets[i] + runs.length; at += step) {
        const auto by = V::load(gradient);
        ((sums[kTap] = V::fma(by, V::load(from[kTap] + at), sums[kTap])), ...);
        gradient += pitch;
      }
    if (accumulate) ((sums[kTap] = V::add(V::load(to + kTap * kColumns), sums[kTap])), ...);
    (V::store(to + kTap * kColumns, sums[kTap]), ...);
  };
  run(std::make_integer_sequence<int, kTaps>{});
}

/// Both for each number of pixels or taps that an edge leaves: at [number - 1]. More chains than this find no
/// registers.
constexpr int kDepthwisePixels = 6, kDepthwiseTaps = 9;
template <class V, typename = std::make_integer_sequence<int, kDepthwisePixels>,
          typename = std::make_integer_sequence<int, kDepthwiseTaps>>
struct DepthwiseTiles;
template <class V, int... kPixels, int... kTaps>
struct DepthwiseTiles<V, std::integer_sequence<int, kPixels...>, std::integer_sequence<int, kTaps...>> {
  using Multiply = void(const Runs& runs, int64_t pitch, const float* source, const int64_t* at,
                        const float* weights, float* to);
  using Add = void(const Runs& runs, int64_t step, int64_t pitch, const int64_t* taps, const float* window,
                   const float* gradient, float* to, bool accumulate);
  static constexpr Multiply* kMultiply[] = {&multiply_depthwise<V, kPixels + 1>...};
  static constexpr Add* kAdd[] = {&add_taps<V, kTaps + 1>...};
};

template <class V>
void convolve_depthwise_with(const Convolution& c, const ConvolutionPart& part,
                             const ConvolutionScratch& scratch) {
  constexpr int kColumns = V::kVectors * V::kLanes;
  constexpr int64_t kTogether = 48;
  alignas(64) float sums[kTogether * kColumns];
  const int64_t taps = c.axes[0].taps * c.axes[1].taps * c.axes[2].taps;
  Runs runs;
  for (int64_t index = part.block_begin; index < part.block_end; ++index) {
    const Box box = box_of<V>(c, index);
    for (int64_t output = part.output_begin; output < part.output_end; output += kColumns) {
      const int64_t lanes = least<V>(kColumns, part.output_end - output);
      // Without taps there is no window: the results are the bias.
      const Window window = taps > 0 ? window_of<V>(c.axes, box, lanes) : Window{};
      const int64_t pixels = find_pixels<V>(c, box, window, scratch.source_at, scratch.out_at);
      runs.count = 0;
      if (taps > 0) {
        widen_window<V>(c.axes, c.source, 0, output, box, window, scratch.source);
        find_runs<V>(c.axes, window, runs);
      }
      with_elements<V>(c.weight.element, c.source.element, [&](auto source) {
        pack_taps<V, decltype(source)>(c, 0, output, lanes, 0, 1, scratch.weights);
      });
      for (int64_t i = 0; i < pixels; i += kTogether) {
        const int64_t count = least<V>(kTogether, pixels - i);
        for (int64_t pixel = 0; pixel < count; pixel += kDepthwisePixels)
          for (int64_t lane = 0; lane < lanes; lane += V::kLanes)
            DepthwiseTiles<V>::kMultiply[least<V>(count - pixel, kDepthwisePixels) - 1](
                runs, lanes, scratch.source + lane, scratch.source_at + i + pixel, scratch.weights + lane,
                sums + pixel * kColumns + lane);
        with_elements<V>(c.out.element, c.out.element, [&](auto out) {
          finish_pixels<V, decltype(out)>(c, 0, output, lanes, scratch.out_at + i, count, sums);
        });
      }
    }
  }
}

/// Widens the gradient of the box's results, [pixel][lanes].
template <class V>
void widen_gradient(const ConvolutionWeight& c, const Box& box, int64_t output, int64_t lanes, float* to) {
  const int64_t length = box.end[3] - box.begin[3];
  with_elements<V>(c.gradient.element, c.gradient.element, [&](auto source) {
    using Source = decltype(source);
    const auto* const data = static_cast<const typename Source::Storage*>(c.gradient.data) +
                             output * c.gradient.channel_stride + box.begin[3] * c.gradient.strides[2];
    for (int64_t n = box.begin[0]; n < box.end[0]; ++n)
      for (int64_t d = box.begin[1]; d < box.end[1]; ++d)
        for (int64_t h = box.begin[2]; h < box.end[2]; ++h, to += length * lanes)
          widen_pixels<V, Source>(
              data + n * c.gradient.image_stride + d * c.gradient.strides[0] + h * c.gradient.strides[1],
              c.gradient.channel_stride, c.gradient.strides[2], lanes, length, to);
  });
}

template <class V>
void convolve_depthwise_weight_with(const ConvolutionWeight& c, const ConvolutionWeightPart& part,
                                    const ConvolutionWeightScratch& scratch) {
  constexpr int kColumns = V::kVectors * V::kLanes;
  const int64_t blocks = block_count<V>(c);
  int64_t taps[kConvolutionDepth], count = 0;
  Runs runs, pixels;
  for (int64_t output = part.output_begin; output < part.output_end; output += kColumns) {
    const int64_t lanes = least<V>(kColumns, part.output_end - output);
    for (int64_t index = 0; index < blocks; ++index) {
      const Box box = box_of<V>(c, index);
      const Window window = window_of<V>(c.axes, box, lanes);
      widen_window<V>(c.axes, c.source, 0, output, box, window, scratch.source);
      widen_gradient<V>(c, box, output, lanes, scratch.gradient);
      find_runs<V>(c.axes, window, runs);
      find_pixel_runs<V>(c, box, window, c.axes[2].step * lanes, pixels);
      count = 0;
      for (int64_t i = 0; i < runs.count; ++i)
        for (int64_t k = 0; k < runs.length; k += lanes) taps[count++] = runs.offsets[i] + k;
      for (int64_t tap = 0; tap < count; tap += kDepthwiseTaps)
        for (int64_t lane = 0; lane < lanes; lane += V::kLanes)
          DepthwiseTiles<V>::kAdd[least<V>(count - tap, kDepthwiseTaps) - 1](
              pixels, c.axes[2].step * lanes, lanes, taps + tap, scratch.source + lane,
              scratch.gradient + lane, scratch.sums + tap * kColumns + lane, index > 0);
    }
    with_elements<V>(c.out.element, c.out.element, [&](auto element) {
      using Out = decltype(element);
      auto* const out = static_cast<typename Out::Storage*>(c.out.data) + output * c.out.image_stride;
      const float* sums = scratch.sums;
      for (int64_t d = 0; d < c.axes[0].taps; ++d)
        for (int64_t h = 0; h < c.axes[1].taps; ++h)
          for (int64_t w = 0; w < c.axes[2].taps; ++w, sums += kColumns)
            for (int64_t lane = 0; lane < lanes; lane += V::kLanes)
              Out::scatter(out + d * c.out.strides[0] + h * c.out.strides[1] + w * c.out.strides[2] +
                               lane * c.out.image_stride,
                           c.out.image_stride, least<V>(lanes - lane, V::kLanes), V::load(sums + lane));
    });
  }
}

}  // namespace mantissa::cpu
