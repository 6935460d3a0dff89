#pragma once

// The gradient of a convolution's weight, on the terms of convolution_internal.h: a product of the packed
// gradient and of windows of the widened source, whose vectors are adjacent channels and taps.

#include <cstdint>
#include <utility>

#include "mantissa/kernels/cpu/convolution_internal.h"

namespace mantissa::cpu {

template <class V>
int64_t block_count(const ConvolutionWeight& c) {
  int64_t count = 1;
  for (int a = 0; a < 4; ++a) count *= ((a == 0 ? c.batch : c.axes[a - 1].out) + c.block[a] - 1) / c.block[a];
  return count;
}

/// The results of a block: `count` runs, whose pixels are `pitch` apart in the window.
struct PixelRuns {
  int64_t count, pitch;
  int64_t offsets[kConvolutionChain], lengths[kConvolutionChain];
};

template <class V>
void find_pixel_runs(const ConvolutionWeight& c, const Box& box, const Window& window, PixelRuns& runs) {
  const int64_t length = box.end[3] - box.begin[3];
  runs.count = 0;
  runs.pitch = c.axes[2].step * window.channels;
  for (int64_t n = 0; n < box.end[0] - box.begin[0]; ++n)
    for (int64_t d = 0; d < box.end[1] - box.begin[1]; ++d)
      for (int64_t h = 0; h < box.end[2] - box.begin[2]; ++h) {
        const int64_t offset =
            ((n * window.size[0] + d * c.axes[0].step) * window.size[1] + h * c.axes[1].step) * window.row();
        const int64_t last = runs.count - 1;
        // Without a border, rows follow each other.
        if (runs.count > 0 && runs.offsets[last] + runs.lengths[last] * runs.pitch == offset) {
          runs.lengths[last] += length;
          continue;
        }
        runs.offsets[runs.count] = offset;
        runs.lengths[runs.count++] = length;
      }
}

/// Packs the gradient of the box's results, V::kRows channels to a panel.
template <class V>
void pack_gradient(const ConvolutionWeight& c, const ConvolutionWeightPart& part, const Box& box,
                   int64_t pixels, float* to) {
  const ConstImages& images = c.gradient;
  // Whole rows that follow each other are one.
  const bool joined = c.block[3] == c.axes[2].out && images.strides[1] == c.axes[2].out * images.strides[2];
  const int64_t rows = joined ? 1 : box.end[2] - box.begin[2];
  const int64_t length = (box.end[3] - box.begin[3]) * (joined ? box.end[2] - box.begin[2] : 1);
  with_elements<V>(images.element, images.element, [&](auto source) {
    using Source = decltype(source);
    const auto* const data = static_cast<const typename Source::Storage*>(images.data) +
                             part.group * images.group_stride + box.begin[2] * images.strides[1] +
                             box.begin[3] * images.strides[2];
    for (int64_t output = part.output_begin; output < part.output_end; output += V::kRows) {
      float* panel = to + (output - part.output_begin) * pixels;
      for (int64_t n = box.begin[0]; n < box.end[0]; ++n)
        for (int64_t d = box.begin[1]; d < box.end[1]; ++d)
          for (int64_t h = 0; h < rows; ++h, panel += length * V::kRows)
            pack_panel<V, V::kRows, Source>(data + n * images.image_stride + d * images.strides[0] +
                                                h * images.strides[1] + output * images.channel_stride,
                                            images.channel_stride, images.strides[2],
                                            part.output_end - output, length, panel);
    }
  });
}

/// multiply_tile(), whose steps are pixels: b's vectors come from the window, a is packed as there.
template <class V, int kTileRows, int kTileVectors>
void multiply_pixels(const PixelRuns& runs, const float* a, const float* window, float* to, int64_t stride,
                     bool accumulate) {
  using Float = typename V::Float;
  // Indexed by constants alone: see multiply_tile().
  const auto run = [&]<int... kSum, int... kVector>(std::integer_sequence<int, kSum...>,
                                                    std::integer_sequence<int, kVector...>)
      __attribute__((always_inline)) {
    Float sums[] = {((void)kSum, V::zero())...};
    const int64_t pitch = runs.pitch;
    for (int64_t i = 0; i < runs.count; ++i) {
      const float* b = window + runs.offsets[i];
#pragma GCC unroll 4
      for (int64_t k = runs.lengths[i]; k > 0; --k) {
        const Float columns[] = {V::load(b + kVector * V::kLanes)...};
        ((sums[kSum] =
              V::fma(V::broadcast(a + kSum / kTileVectors), columns[kSum % kTileVectors], sums[kSum])),
         ...);
        a += V::kRows;
        b += pitch;
      }
    }
    if (accumulate)
      ((sums[kSum] =
            V::add(V::load(to + kSum / kTileVectors * stride + kSum % kTileVectors * V::kLanes), sums[kSum])),
       ...);
    (V::store(to + kSum / kTileVectors * stride + kSum % kTileVectors * V::kLanes, sums[kSum]), ...);
  };
  run(std::make_integer_sequence<int, kTileRows * kTileVectors>{},
      std::make_integer_sequence<int, kTileVectors>{});
}

/// multiply_pixels() for each number of rows and vectors: see Tiles.
template <class V, typename = std::make_integer_sequence<int, V::kRows * V::kVectors>>
struct PixelTiles;
template <class V, int... kIndex>
struct PixelTiles<V, std::integer_sequence<int, kIndex...>> {
  using Multiply = void(const PixelRuns& runs, const float* a, const float* window, float* to, int64_t stride,
                        bool accumulate);
  static constexpr Multiply* kOf[] = {
      &multiply_pixels<V, kIndex / V::kVectors + 1, kIndex % V::kVectors + 1>...};
};

/// From finished sums to the part's weights. A run of taps takes `padded` sums.
template <class V, class Out>
void finish_weights(const ConvolutionWeight& c, const ConvolutionWeightPart& part, const float* sums,
                    int64_t stride, int64_t padded) {
  using Storage = typename Out::Storage;
  const int64_t channels = part.channel_end - part.channel_begin, step = c.out.channel_stride;
  const bool adjacent = c.axes[2].dilation == 1;
  for (int64_t output = part.output_begin; output < part.output_end; ++output, sums += stride) {
    auto* const out = static_cast<Storage*>(c.out.data) + part.group * c.out.group_stride +
                      output * c.out.image_stride + part.channel_begin * step;
    const float* run = sums;
    for (int64_t d = 0; d < c.axes[0].taps; ++d)
      for (int64_t h = 0; h < c.axes[1].taps; ++h) {
        for (int64_t w = 0; w < c.axes[2].taps; ++w) {
          const float* const from = run + w * (adjacent ? channels : padded);
          Storage* const to = out + d * c.out.strides[0] + h * c.out.strides[1] + w * c.out.strides[2];
          for (int64_t i = 0; i < channels; i += V::kLanes) {
            if (step == 1 && channels - i >= V::kLanes)
              Out::store(to + i, V::load(from + i));
            else
              Out::scatter(to + i * step, step, least<V>(channels - i, V::kLanes), V::load(from + i));
          }
        }
        run += adjacent ? padded : padded * c.axes[2].taps;
      }
  }
}

template <class V>
void convolve_weight_with(const ConvolutionWeight& c, const ConvolutionWeightPart& part,
                          const ConvolutionWeightScratch& scratch) {
  constexpr int kColumns = V::kVectors * V::kLanes;
  const int64_t channels = part.channel_end - part.channel_begin;
  const int64_t outputs = part.output_end - part.output_begin;
  const int64_t blocks = block_count<V>(c);
  int64_t padded = 0, stride = 0;
  Runs runs;
  PixelRuns pixels;
  for (int64_t index = 0; index < blocks; ++index) {
    const Box box = box_of<V>(c, index);
    const Window window = window_of<V>(c.axes, box, channels);
    widen_window<V>(c.axes, c.source, part.group, part.channel_begin, box, window, scratch.source);
    find_runs<V>(c.axes, window, runs);
    find_pixel_runs<V>(c, box, window, pixels);
    int64_t count = 1;
    for (int a = 0; a < 4; ++a) count *= box.end[a] - box.begin[a];
    pack_gradient<V>(c, part, box, count, scratch.gradient);
    padded = (runs.length + kColumns - 1) / kColumns * kColumns;
    stride = runs.count * padded;
    for (int64_t i = 0; i < runs.count; ++i)
      for (int64_t col = 0; col < runs.length; col += kColumns) {
        const int64_t vectors = (least<V>(runs.length - col, kColumns) + V::kLanes - 1) / V::kLanes;
        for (int64_t output = 0; output < outputs; output += V::kRows)
          PixelTiles<V>::kOf[(least<V>(outputs - output, V::kRows) - 1) * V::kVectors + vectors - 1](
              pixels, scratch.gradient + output * count, scratch.source + runs.offsets[i] + col,
              scratch.sums + output * stride + i * padded + col, stride, index > 0);
      }
  }
  with_elements<V>(c.out.element, c.out.element, [&](auto out) {
    finish_weights<V, decltype(out)>(c, part, scratch.sums, stride, padded);
  });
}

}  // namespace mantissa::cpu
