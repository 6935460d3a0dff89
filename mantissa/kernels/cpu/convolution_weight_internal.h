#pragma once

// The gradient of a convolution's weight. This header follows the rules of convolution_internal.h. The
// gradient is a product of the packed output gradient and of windows of the widened source, whose vectors are
// adjacent channels and taps.

#include <cstdint>
#include <utility>

#include "mantissa/kernels/cpu/convolution_internal.h"

namespace mantissa::kernels::cpu {

/// Finds the results of a block as runs of pixels that are `pitch` apart in the window.
template <class V>
void find_pixel_runs(const BlockedConvolutionWeight& c, const Box& box, const Window& window, int64_t pitch,
                     Runs& runs) {
  int64_t counts[] = {box.end[0] - box.begin[0], box.end[1] - box.begin[1], box.end[2] - box.begin[2]};
  const int64_t strides[] = {window.size[0] * window.size[1] * window.row(),
                             c.axes[0].step * window.size[1] * window.row(), c.axes[1].step * window.row()};
  runs.length = (box.end[3] - box.begin[3]) * pitch;
  // Without a border, consecutive rows are contiguous and form one run.
  for (int a = 2; a >= 0 && (counts[a] == 1 || strides[a] == runs.length); --a) {
    runs.length *= counts[a];
    counts[a] = 1;
  }
  runs.count = 0;
  for (int64_t n = 0; n < counts[0]; ++n)
    for (int64_t d = 0; d < counts[1]; ++d)
      for (int64_t h = 0; h < counts[2]; ++h) {
        runs.packed[runs.count] = runs.count * (runs.length / pitch);
        runs.offsets[runs.count++] = n * strides[0] + d * strides[1] + h * strides[2];
      }
}

/// Packs the gradient of the box's results, with kWidth channels per panel.
template <class V, int kWidth>
void pack_gradient(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part, const Box& box,
                   int64_t pixels, float* to) {
  const ConstImages& images = c.gradient;
  // Whole rows that are contiguous form one row.
  const bool joined = c.block[3] == c.axes[2].out && images.strides[1] == c.axes[2].out * images.strides[2];
  const int64_t rows = joined ? 1 : box.end[2] - box.begin[2];
  const int64_t length = (box.end[3] - box.begin[3]) * (joined ? box.end[2] - box.begin[2] : 1);
  with_elements<V>(images.element, images.element, [&](auto source) {
    using Source = decltype(source);
    const auto* const data = static_cast<const typename Source::Storage*>(images.data) +
                             part.group * images.group_stride + box.begin[2] * images.strides[1] +
                             box.begin[3] * images.strides[2];
    for (int64_t output = part.output_begin; output < part.output_end; output += kWidth) {
      float* panel = to + (output - part.output_begin) * pixels;
      for (int64_t n = box.begin[0]; n < box.end[0]; ++n)
        for (int64_t d = box.begin[1]; d < box.end[1]; ++d)
          for (int64_t h = 0; h < rows; ++h, panel += length * kWidth)
            pack_micro_panel<V, kWidth, Source>(data + n * images.image_stride + d * images.strides[0] +
                                                    h * images.strides[1] + output * images.channel_stride,
                                                images.channel_stride, images.strides[2],
                                                part.output_end - output, length, panel);
    }
  });
}

/// Like micro_kernel(), with pixels as steps: b's vectors come from the window, and a is packed as for
/// micro_kernel().
template <class V, int kTileRows, int kTileVectors>
void multiply_pixels(const Runs& runs, int64_t pitch, const float* a, const float* window, float* to,
                     int64_t stride, bool accumulate) {
  using Float = typename V::Float;
  // Indexed by constants only: see micro_kernel().
  const auto run = [&]<int... kSum, int... kVector>(std::integer_sequence<int, kSum...>,
                                                    std::integer_sequence<int, kVector...>)
      __attribute__((always_inline)) {
    Float sums[] = {((void)kSum, V::zero())...};
    for (int64_t i = 0; i < runs.count; ++i) {
      const float* b = window + runs.offsets[i];
#pragma GCC unroll 4
      for (int64_t k = runs.length; k > 0; k -= pitch) {
        const Float columns[] = {V::load(b + kVector * V::kLanes)...};
        ((sums[kSum] =
              V::fma(V::broadcast(a + kSum / kTileVectors), columns[kSum % kTileVectors], sums[kSum])),
         ...);
        a += V::kMR;
        b += pitch;
      }
    }
    if (accumulate)
      ((sums[kSum] =
            V::add(V::load(to + kSum / kTileVectors * stride + kSum % kTileVectors * V::kLanes), sums[kSum])),
       ...);
    else  // as in multiply_runs(): parts of one weight may use either kernel
      ((sums[kSum] = V::add(V::zero(), sums[kSum])), ...);
    (V::store(to + kSum / kTileVectors * stride + kSum % kTileVectors * V::kLanes, sums[kSum]), ...);
  };
  run(std::make_integer_sequence<int, kTileRows * kTileVectors>{},
      std::make_integer_sequence<int, kTileVectors>{});
}

/// multiply_pixels() for each number of rows and vectors: see MicroKernels.
template <class V, typename = std::make_integer_sequence<int, V::kMR * V::kVectors>>
struct PixelMicroKernels;
template <class V, int... kIndex>
struct PixelMicroKernels<V, std::integer_sequence<int, kIndex...>> {
  using Multiply = void(const Runs& runs, int64_t pitch, const float* a, const float* window, float* to,
                        int64_t stride, bool accumulate);
  static constexpr Multiply* kOf[] = {
      &multiply_pixels<V, kIndex / V::kVectors + 1, kIndex % V::kVectors + 1>...};
};

/// Writes finished sums to the part's weights. A run of taps has `padded` sums.
template <class V, class Out>
void finish_weights(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part, const float* sums,
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

/// One block of results and the state of its computation.
struct WeightBlock {
  int64_t results = 0, pitch = 0;  ///< their number, and their distance in the window
  Runs taps, pixels;
  float* sums = nullptr;
  bool accumulates = false;  ///< whether there are sums of earlier blocks
};

/// Adds a block with micro-tiles of results' channels x adjacent taps and channels of the window.
template <class V>
void add_wide(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part, const Box& box,
              const WeightBlock& block, const ConvolutionWeightScratch& scratch) {
  constexpr int kNR = V::kVectors * V::kLanes;
  const int64_t outputs = part.output_end - part.output_begin;
  pack_gradient<V, V::kMR>(c, part, box, block.results, scratch.gradient);
  const Runs& taps = block.taps;
  const int64_t padded = (taps.length + kNR - 1) / kNR * kNR, stride = taps.count * padded;
  for (int64_t i = 0; i < taps.count; ++i)
    for (int64_t col = 0; col < taps.length; col += kNR) {
      const int64_t vectors = (least<V>(taps.length - col, kNR) + V::kLanes - 1) / V::kLanes;
      for (int64_t output = 0; output < outputs; output += V::kMR)
        PixelMicroKernels<V>::kOf[(least<V>(outputs - output, V::kMR) - 1) * V::kVectors + vectors - 1](
            block.pixels, block.pitch, scratch.gradient + output * block.results,
            scratch.source + taps.offsets[i] + col, block.sums + output * stride + i * padded + col, stride,
            block.accumulates);
    }
}

/// Adds a block with micro-tiles of taps and channels x results' channels, if few channels would leave
/// vectors of the window half empty. The sums are [panel][tap and channel][kNR].
template <class V>
void add_narrow(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part, const Box& box,
                const WeightBlock& block, const ConvolutionWeightScratch& scratch) {
  constexpr int kNR = V::kVectors * V::kLanes;
  const int64_t outputs = part.output_end - part.output_begin;
  pack_gradient<V, kNR>(c, part, box, block.results, scratch.gradient);
  int64_t rows[kConvolutionDepth], count = 0;
  for (int64_t i = 0; i < block.taps.count; ++i)
    for (int64_t k = 0; k < block.taps.length; ++k) rows[count++] = block.taps.offsets[i] + k;
  for (int64_t output = 0; output < outputs; output += kNR) {
    const int64_t vectors = (least<V>(outputs - output, kNR) + V::kLanes - 1) / V::kLanes;
    for (int64_t row = 0; row < count; row += V::kMR)
      RunMicroKernels<V, int64_t>::multiply(least<V>(count - row, V::kMR), vectors, block.pixels, block.pitch,
                                            scratch.source, rows + row, /*pitch=*/1,
                                            scratch.gradient + output * block.results,
                                            block.sums + output * count + row * kNR, block.accumulates);
  }
}

template <class V, class Out>
void finish_narrow(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part, const float* sums) {
  constexpr int kNR = V::kVectors * V::kLanes;
  const int64_t channels = part.channel_end - part.channel_begin;
  auto* const out = static_cast<typename Out::Storage*>(c.out.data) + part.group * c.out.group_stride +
                    part.channel_begin * c.out.channel_stride;
  for (int64_t output = part.output_begin; output < part.output_end; output += kNR)
    for (int64_t d = 0; d < c.axes[0].taps; ++d)
      for (int64_t h = 0; h < c.axes[1].taps; ++h)
        for (int64_t w = 0; w < c.axes[2].taps; ++w)
          for (int64_t i = 0; i < channels; ++i, sums += kNR)
            for (int64_t lane = 0; lane < kNR && output + lane < part.output_end; lane += V::kLanes)
              Out::scatter(out + (output + lane) * c.out.image_stride + i * c.out.channel_stride +
                               d * c.out.strides[0] + h * c.out.strides[1] + w * c.out.strides[2],
                           c.out.image_stride, least<V>(part.output_end - output - lane, V::kLanes),
                           V::load(sums + lane));
}

template <class V>
void convolve_weight_with(const BlockedConvolutionWeight& c, const ConvolutionWeightPart& part,
                          const ConvolutionWeightScratch& scratch) {
  constexpr int kNR = V::kVectors * V::kLanes;
  const int64_t channels = part.channel_end - part.channel_begin;
  const int64_t depth = c.axes[0].taps * c.axes[1].taps * c.axes[2].taps * channels;
  const bool narrow = channels < V::kLanes && depth <= kConvolutionDepth;
  WeightBlock block;
  for (int64_t index = part.block_begin; index < part.block_end; ++index) {
    const Box box = box_of<V>(c, index);
    block.sums = scratch.sums + (index - part.block_begin) * scratch.block_sums;
    block.accumulates = index > part.block_begin && scratch.block_sums == 0;
    const Window window = window_of<V>(c.axes, box, channels);
    widen_window<V>(c.axes, c.source, part.group, part.channel_begin, box, window, scratch.source);
    block.pitch = c.axes[2].step * channels;
    block.results = 1;
    for (int a = 0; a < 4; ++a) block.results *= box.end[a] - box.begin[a];
    find_runs<V>(c.axes, window, block.taps);
    find_pixel_runs<V>(c, box, window, block.pitch, block.pixels);
    (narrow ? add_narrow<V> : add_wide<V>)(c, part, box, block, scratch);
  }
  if (!part.writes) return;
  with_elements<V>(c.out.element, c.out.element, [&](auto out) {
    using Out = decltype(out);
    if (narrow) return finish_narrow<V, Out>(c, part, scratch.sums);
    const int64_t run = (c.axes[2].dilation == 1 ? c.axes[2].taps : 1) * channels;
    const int64_t padded = (run + kNR - 1) / kNR * kNR;
    finish_weights<V, Out>(c, part, scratch.sums, depth / run * padded, padded);
  });
}

template <class V>
void add_block_sums_with(const float* from, int64_t stride, int64_t blocks, int64_t count, bool accumulate,
                         float* to) {
  for (int64_t i = 0; i < count; i += V::kLanes) {
    auto sum = V::load(accumulate ? to + i : from + i);
    for (int64_t block = accumulate ? 0 : 1; block < blocks; ++block)
      sum = V::add(sum, V::load(from + block * stride + i));
    V::store(to + i, sum);
  }
}

}  // namespace mantissa::kernels::cpu
