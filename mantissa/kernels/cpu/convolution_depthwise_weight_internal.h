#pragma once

// The weight gradients of depthwise and grouped convolutions. This header follows the rules of
// convolution_internal.h. Vectors are adjacent channels, and a gradient is used for several taps while it is in
// a register.

#include <cstdint>
#include <utility>

#include "mantissa/kernels/cpu/convolution_internal.h"
#include "mantissa/kernels/cpu/convolution_weight_internal.h"

namespace mantissa::kernels::cpu {

/// Sets to[tap * kConvolutionLanes + lane] to the sum over the runs' pixels of window[taps[tap] + pixel]
/// gradient[pixel], for kTaps taps and one vector of channels; with `accumulate`, adds the sum to it. The
/// window's pixels are `step` apart, the gradient's `pitch`.
template <class V, int kTaps>
void add_taps(const Runs& runs, int64_t step, int64_t pitch, const int64_t* taps, const float* window,
              const float* gradient, float* to, bool accumulate) {
  const auto run = [&]<int... kTap>(std::integer_sequence<int, kTap...>) __attribute__((always_inline)) {
    typename V::Float sums[] = {((void)kTap, V::zero())...};
    const float* const from[] = {(window + taps[kTap])...};
    for (int64_t i = 0; i < runs.count; ++i)
      for (int64_t at = runs.offsets[i]; at < runs.offsets[i] + runs.length; at += step) {
        const auto by = V::load(gradient);
        ((sums[kTap] = V::fma(by, V::load(from[kTap] + at), sums[kTap])), ...);
        gradient += pitch;
      }
    if (accumulate)
      ((sums[kTap] = V::add(V::load(to + kTap * kConvolutionLanes), sums[kTap])), ...);
    else  // as in multiply_runs()
      ((sums[kTap] = V::add(V::zero(), sums[kTap])), ...);
    (V::store(to + kTap * kConvolutionLanes, sums[kTap]), ...);
  };
  run(std::make_integer_sequence<int, kTaps>{});
}

/// Widens the gradient of the box's results to [pixel][lanes].
template <class V>
void widen_gradient(const BlockedConvolutionWeight& c, const Box& box, int64_t output, int64_t lanes,
                    float* to) {
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

/// add_taps() for groups of several channels: to[(tap * kGroup + channel) * kConvolutionLanes + lane].
template <class V, int kTaps, int kGroup>
void add_group_taps(const Runs& runs, int64_t step, int64_t pitch, const int64_t* taps, const float* window,
                    const float* gradient, float* to, bool accumulate) {
  using Float = typename V::Float;
  const auto run = [&]<int... kSum, int... kTap, int... kChannel>(
      std::integer_sequence<int, kSum...>, std::integer_sequence<int, kTap...>,
      std::integer_sequence<int, kChannel...>) __attribute__((always_inline)) {
    Float sums[] = {((void)kSum, V::zero())...};
    const float* const from[] = {(window + taps[kTap])...};
    for (int64_t i = 0; i < runs.count; ++i)
      for (int64_t at = runs.offsets[i]; at < runs.offsets[i] + runs.length; at += step) {
        const Float by = V::load(gradient);
        const auto add = [&](Float * of_tap, Float x) __attribute__((always_inline)) {
          ((of_tap[kChannel] = V::fma(by, V::template spread<kGroup, kChannel>(x), of_tap[kChannel])), ...);
        };
        (add(sums + kTap * kGroup, V::load(from[kTap] + at)), ...);
        gradient += pitch;
      }
    if (accumulate)
      ((sums[kSum] = V::add(V::load(to + kSum * kConvolutionLanes), sums[kSum])), ...);
    else  // as in multiply_runs()
      ((sums[kSum] = V::add(V::zero(), sums[kSum])), ...);
    (V::store(to + kSum * kConvolutionLanes, sums[kSum]), ...);
  };
  run(std::make_integer_sequence<int, kTaps * kGroup>{}, std::make_integer_sequence<int, kTaps>{},
      std::make_integer_sequence<int, kGroup>{});
}

/// Adds one tap or several for each channel of a vector: see add_taps().
using AddTaps = void(const Runs& runs, int64_t step, int64_t pitch, const int64_t* taps, const float* window,
                     const float* gradient, float* to, bool accumulate);

/// add_taps() for each number of taps that an edge leaves, at [taps - 1]. Larger numbers would not fit into the
/// registers.
template <class V, typename = std::make_integer_sequence<int, 9>>
struct DepthwiseTaps;
template <class V, int... kTaps>
struct DepthwiseTaps<V, std::integer_sequence<int, kTaps...>> {
  static constexpr int64_t kMaxTaps = sizeof...(kTaps);
  static constexpr AddTaps* kAdd[] = {&add_taps<V, kTaps + 1>...};
};

/// add_group_taps() for each number of taps, at [taps - 1]. Twelve sums leave registers for the gradient and
/// the source.
template <class V, int kGroup, typename = std::make_integer_sequence<int, 12 / kGroup>>
struct GroupTaps;
template <class V, int kGroup, int... kTaps>
struct GroupTaps<V, kGroup, std::integer_sequence<int, kTaps...>> {
  static constexpr int64_t kMaxTaps = sizeof...(kTaps);
  static constexpr AddTaps* kAdd[] = {&add_group_taps<V, kTaps + 1, kGroup>...};
};

/// Computes a depthwise weight gradient, or one of groups of kGroup channels: see convolve_rows_with().
template <class V, int kGroup>
void convolve_lanes_weight_with(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                                const ConvolutionWeightScratch& scratch) {
  int64_t taps[kConvolutionDepth], count = 0;
  Runs runs, pixels;
  // The window has more channels than a panel, as in convolve_rows_with().
  for (int64_t output = part.output_begin; output < part.output_end; output += kConvolutionLanes) {
    const int64_t lanes = least<V>(kConvolutionLanes, part.output_end - output);
    for (int64_t index = part.block_begin; index < part.block_end; ++index) {
      const Box box = box_of<V>(c, index);
      const Window window = window_of<V>(c.axes, box, lanes);
      float* const sums = scratch.sums + (index - part.block_begin) * scratch.block_sums;
      const bool accumulates = index > part.block_begin && scratch.block_sums == 0;
      widen_window<V>(c.axes, c.source, 0, output, box, window, scratch.source);
      widen_gradient<V>(c, box, output, lanes, scratch.gradient);
      find_runs<V>(c.axes, window, runs);
      find_pixel_runs<V>(c, box, window, c.axes[2].step * lanes, pixels);
      count = 0;
      for (int64_t i = 0; i < runs.count; ++i)
        for (int64_t k = 0; k < runs.length; k += lanes) taps[count++] = runs.offsets[i] + k;
      const auto add = [&](auto* const* tiles, int64_t together) {
        for (int64_t lane = 0; lane < lanes; lane += V::kLanes)
          for (int64_t tap = 0; tap < count; tap += together)
            tiles[least<V>(count - tap, together) - 1](
                pixels, c.axes[2].step * lanes, lanes, taps + tap, scratch.source + lane,
                scratch.gradient + lane, sums + tap * kGroup * kConvolutionLanes + lane, accumulates);
      };
      if constexpr (kGroup == 1)
        add(DepthwiseTaps<V>::kAdd, DepthwiseTaps<V>::kMaxTaps);
      else
        add(GroupTaps<V, kGroup>::kAdd, GroupTaps<V, kGroup>::kMaxTaps);
    }
    if (!part.writes) continue;
    with_elements<V>(c.out.element, c.out.element, [&](auto element) {
      using Out = decltype(element);
      auto* const out = static_cast<typename Out::Storage*>(c.out.data);
      // Groups of one channel are written a vector at a time, because their results are evenly spaced.
      constexpr int64_t kChunk = kGroup == 1 ? V::kLanes : kGroup;
      const float* sums = scratch.sums;
      for (int64_t d = 0; d < c.axes[0].taps; ++d)
        for (int64_t h = 0; h < c.axes[1].taps; ++h)
          for (int64_t w = 0; w < c.axes[2].taps; ++w)
            for (int64_t channel = 0; channel < kGroup; ++channel, sums += kConvolutionLanes)
              for (int64_t lane = 0; lane < lanes; lane += kChunk) {
                const int64_t first = kGroup == 1 ? (output + lane) * c.out.image_stride
                                                  : (output + lane) / kGroup * c.out.group_stride;
                Out::scatter(out + first + channel * c.out.channel_stride + d * c.out.strides[0] +
                                 h * c.out.strides[1] + w * c.out.strides[2],
                             c.out.image_stride, least<V>(lanes - lane, kChunk), V::load(sums + lane));
              }
    });
  }
}

template <class V>
void convolve_depthwise_weight_with(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                                    const ConvolutionWeightScratch& scratch) {
  convolve_lanes_weight_with<V, 1>(c, part, scratch);
}

template <class V>
void convolve_groups_weight_with(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                                 const ConvolutionWeightScratch& scratch) {
  if (c.channels == 2) return convolve_lanes_weight_with<V, 2>(c, part, scratch);
  convolve_lanes_weight_with<V, 4>(c, part, scratch);
}

}  // namespace mantissa::kernels::cpu
