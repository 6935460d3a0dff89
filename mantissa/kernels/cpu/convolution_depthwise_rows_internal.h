#pragma once

// Convolutions of groups of one, two or four channels whose results have adjacent channels (channels last).
// The results are rounded and written from registers. In contrast, convolution_depthwise_internal.h stores
// sums that finish_pixels() transposes.

#include <cstdint>
#include <utility>

#include "mantissa/kernels/cpu/convolution_internal.h"

namespace mantissa::kernels::cpu {

/// The taps that results read, by phase. The phases of a turned convolution are the remainders of a position
/// by the steps of all axes.
struct PhasedTaps {
  int64_t begin[kTurnedPhases + 1] = {};   ///< the first tap of each phase, and the end
  int64_t source[kConvolutionDepth] = {};  ///< offsets in the window, from the phase's first pixel
  int64_t weight[kConvolutionDepth] = {};  ///< offsets in the panel
};

/// Computes out[pixel * out_pitch + lane] = the rounded sum over `taps` of source[pixel * pitch + tap]
/// weights[tap], for kPixels pixels and kTileVectors vectors of adjacent channels. `bias` is the bias of
/// these channels, or null.
template <class V, class Out, int kPixels, int kTileVectors>
void finish_row(const int64_t* source_offsets, const int64_t* weight_offsets, int64_t taps,
                const float* source, int64_t pitch, const float* weights, const float* bias,
                typename Out::Storage* out, int64_t out_pitch) {
  using Float = typename V::Float;
  // Indexed by constants only: see micro_kernel().
  const auto run = [&]<int... kSum, int... kVector, int... kPixel>(
      std::integer_sequence<int, kSum...>, std::integer_sequence<int, kVector...>,
      std::integer_sequence<int, kPixel...>) __attribute__((always_inline)) {
    Float sums[] = {((void)kSum, V::zero())...};
    const float* const pixels[] = {(source + kPixel * pitch)...};
    for (int64_t i = 0; i < taps; ++i) {
      const int64_t k = source_offsets[i];
      const float* const tap = weights + weight_offsets[i];
      const Float by[] = {V::load(tap + kVector * V::kLanes)...};
      ((sums[kSum] =
            V::fma(by[kSum % kTileVectors],
                   V::load(pixels[kSum / kTileVectors] + k + kSum % kTileVectors * V::kLanes), sums[kSum])),
       ...);
    }
    // store_pair() requires NaNs whose last 16 bits are 0. Source and weight have no others; a float32 bias
    // may.
    bool pairs = kTileVectors == 2;
    if (bias != nullptr) {
      ((sums[kSum] = V::add(sums[kSum], V::load(bias + kSum % kTileVectors * V::kLanes))), ...);
      pairs = pairs && !(V::is_nan(V::load(bias + kVector * V::kLanes)) || ...);
    }
    if constexpr (kTileVectors == 2) {
      if (pairs) {
        (Out::store_pair(out + kPixel * out_pitch, sums[2 * kPixel], sums[2 * kPixel + 1]), ...);
        return;
      }
    }
    (Out::store(out + kSum / kTileVectors * out_pitch + kSum % kTileVectors * V::kLanes, sums[kSum]), ...);
  };
  run(std::make_integer_sequence<int, kPixels * kTileVectors>{},
      std::make_integer_sequence<int, kTileVectors>{}, std::make_integer_sequence<int, kPixels>{});
}

/// finish_row() for each number of pixels and vectors, at [pixels - 1][vectors - 1]. Seven pixels of two
/// vectors are 14 sums, which leaves a register for each vector of the weight.
constexpr int kRowPixels = 7;
template <class V, class Out, typename = std::make_integer_sequence<int, kRowPixels>>
struct DepthwiseRows;
template <class V, class Out, int... kPixels>
struct DepthwiseRows<V, Out, std::integer_sequence<int, kPixels...>> {
  static_assert(V::kVectors == 2);
  using Finish = void(const int64_t* source_offsets, const int64_t* weight_offsets, int64_t taps,
                      const float* source, int64_t pitch, const float* weights, const float* bias,
                      typename Out::Storage* out, int64_t out_pitch);
  static constexpr Finish* kFinish[][2] = {
      {&finish_row<V, Out, kPixels + 1, 1>, &finish_row<V, Out, kPixels + 1, 2>}...};
};

/// `channels` is the number of source channels that a result reads.
template <class V>
void find_taps(const Axis* axes, const Window& window, int64_t channels, PhasedTaps& taps) {
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  int64_t count = 0;
  for (int64_t d = 0; d < axes[0].taps; ++d)
    for (int64_t h = 0; h < axes[1].taps; ++h)
      for (int64_t w = 0; w < axes[2].taps; ++w, ++count) {
        taps.source[count] = (d * axes[0].dilation * window.size[1] + h * axes[1].dilation) * window.row() +
                             w * axes[2].dilation * window.channels;
        taps.weight[count] = count * channels * kNR;
      }
  taps.begin[1] = count;
}

/// finish_row() for one vector of channels in groups of kGroup. weights[tap] are kGroup vectors, kNR floats
/// apart: one for each channel of a group, with its weights for all results of the group. The source's
/// vectors hold the same channels.
template <class V, class Out, int kPixels, int kGroup>
void finish_groups(const int64_t* source_offsets, const int64_t* weight_offsets, int64_t taps,
                   const float* source, int64_t pitch, const float* weights, const float* bias,
                   typename Out::Storage* out, int64_t out_pitch) {
  using Float = typename V::Float;
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  // Indexed by constants only: see micro_kernel().
  const auto run = [&]<int... kPixel, int... kChannel>(std::integer_sequence<int, kPixel...>,
                                                       std::integer_sequence<int, kChannel...>)
      __attribute__((always_inline)) {
    Float sums[] = {((void)kPixel, V::zero())...};
    const float* const pixels[] = {(source + kPixel * pitch)...};
    for (int64_t i = 0; i < taps; ++i) {
      const int64_t k = source_offsets[i];
      const float* const tap = weights + weight_offsets[i];
      const Float by[] = {V::load(tap + kChannel * kNR)...};
      const auto add = [&](Float & sum, Float x) __attribute__((always_inline)) {
        ((sum = V::fma(by[kChannel], V::template spread<kGroup, kChannel>(x), sum)), ...);
      };
      (add(sums[kPixel], V::load(pixels[kPixel] + k)), ...);
    }
    if (bias != nullptr) ((sums[kPixel] = V::add(sums[kPixel], V::load(bias))), ...);
    (Out::store(out + kPixel * out_pitch, sums[kPixel]), ...);
  };
  run(std::make_integer_sequence<int, kPixels>{}, std::make_integer_sequence<int, kGroup>{});
}

/// finish_groups() for each number of pixels, at [pixels - 1].
template <class V, class Out, int kGroup, typename = std::make_integer_sequence<int, kRowPixels>>
struct GroupRows;
template <class V, class Out, int kGroup, int... kPixels>
struct GroupRows<V, Out, kGroup, std::integer_sequence<int, kPixels...>> {
  static constexpr
      typename DepthwiseRows<V, Out>::Finish* kFinish[] = {&finish_groups<V, Out, kPixels + 1, kGroup>...};
};

/// The results of a row that have one phase: the positions of the first one, their number, and the size of
/// the equal tiles.
struct RowPhase {
  int64_t source, out, count, tile;
};

/// How the rows of a box are computed. In a turned convolution, pixels of one phase are adjacent in the
/// source and `steps` apart in the results. In others the steps are 1, and the source's pixels are `pitches`
/// apart.
struct Rows {
  bool is_turned;
  int64_t steps[3], pitches[3];
};

/// Computes the results [output, output + lanes) of a box, at most one panel of whole vectors. `source` and
/// `weights` belong to them. kGroup adjacent channels form a group: each of them contributes to all results
/// of the group.
template <class V, int kGroup>
void finish_rows(const BlockedConvolution& c, const Box& box, const Window& window, const Rows& rows,
                 const PhasedTaps& taps, int64_t output, int64_t lanes, const float* source,
                 const float* weights) {
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  const int64_t* const steps = rows.steps;
  alignas(64) float values[kNR];
  const float* const bias = c.bias == nullptr ? nullptr : values;
  for (int64_t lane = 0; lane < lanes && bias != nullptr; lane += V::kLanes)
    V::store(values + lane, load_from<V>({c.bias, c.bias_element, 0, 0, 0}, Element::kFloat32,
                                         (output + lane) * c.bias_stride, c.bias_stride, V::kLanes));
  const int64_t vectors = lanes / V::kLanes;
  const int64_t pitch = rows.pitches[2] * window.channels, out_pitch = steps[2] * c.out.strides[2];
  // Maps a result's position to its phase's first pixel in the window.
  const auto place = [&](int a, int64_t at) {
    return rows.is_turned ? at / steps[a] - window.first[a] : (at - box.begin[a + 1]) * rows.pitches[a];
  };
  RowPhase phases[kTurnedPhases];
  for (int64_t w = 0; w < steps[2]; ++w) {
    const int64_t first = box.begin[3] + (w - box.begin[3] % steps[2] + steps[2]) % steps[2];
    const int64_t count = first < box.end[3] ? (box.end[3] - first + steps[2] - 1) / steps[2] : 0;
    const int64_t tiles = (count + kRowPixels - 1) / kRowPixels;
    phases[w] = {place(2, first) * window.channels, first * c.out.strides[2], count,
                 count == 0 ? 0 : (count + tiles - 1) / tiles};
  }
  with_elements<V>(c.out.element, c.out.element, [&](auto element) {
    using Out = decltype(element);
    auto* const data = static_cast<typename Out::Storage*>(c.out.data) + output;
    for (int64_t n = box.begin[0]; n < box.end[0]; ++n)
      for (int64_t d = box.begin[1]; d < box.end[1]; ++d)
        for (int64_t h = box.begin[2]; h < box.end[2]; ++h) {
          const int64_t row =
              ((n - box.begin[0]) * window.size[0] + place(0, d)) * window.size[1] + place(1, h);
          auto* const out = data + n * c.out.image_stride + d * c.out.strides[0] + h * c.out.strides[1];
          const int64_t* begin = taps.begin + (d % steps[0] * steps[1] + h % steps[1]) * steps[2];
          for (const RowPhase* phase = phases; phase < phases + steps[2]; ++phase, ++begin) {
            const float* from = source + row * window.row() + phase->source;
            auto* to = out + phase->out;
            for (int64_t left = phase->count; left > 0; left -= phase->tile) {
              const int64_t tile = least<V>(left, phase->tile) - 1;
              if constexpr (kGroup == 1) {
                DepthwiseRows<V, Out>::kFinish[tile][vectors - 1](taps.source + begin[0],
                                                                  taps.weight + begin[0], begin[1] - begin[0],
                                                                  from, pitch, weights, bias, to, out_pitch);
              } else {
                for (int64_t lane = 0; lane < lanes; lane += V::kLanes)
                  GroupRows<V, Out, kGroup>::kFinish[tile](
                      taps.source + begin[0], taps.weight + begin[0], begin[1] - begin[0], from + lane, pitch,
                      weights + lane, bias == nullptr ? nullptr : bias + lane, to + lane, out_pitch);
              }
              from += phase->tile * pitch;
              to += phase->tile * out_pitch;
            }
          }
        }
  });
}

}  // namespace mantissa::kernels::cpu
