#pragma once

// Convolutions with few results per pixel, such as the input gradient of an image with three channels, or the
// last layer of a decoder.
//
// In convolution_internal.h the lanes of a vector are the results of one pixel. With few results most lanes
// would be empty. Here the lanes are adjacent pixels. The window, which is the part of the source that a block
// of results needs, is stored in float32 as one plane per channel. A tap then is an offset in the plane: the
// operands of adjacent pixels are adjacent there, and one load reads them.
//
// The same kernels also compute convolutions with more results whose sums are short and whose result is in
// NCHW, such as the first layer for grey images. The other kernels would have to transpose that result.

#include <cstdint>
#include <utility>

#include "mantissa/kernels/cpu/convolution_internal.h"

namespace mantissa::kernels::cpu {

/// The offsets of a pixel's taps in a plane of the window.
struct PlaneTaps {
  int64_t count = 0;
  int64_t offsets[kConvolutionDepth] = {};
};

/// The micro-kernel, for kResults results of kPixelVectors vectors of pixels. It sets to[result * to_pitch +
/// pixel] to the sum over taps and channels of source[channel * plane + tap + pixel] * weights[(tap,
/// channel)][result]. With `accumulate`, it adds the sum instead.
template <class V, int kResults, int kPixelVectors>
void multiply_planes(const PlaneTaps& taps, int64_t channels, const float* source, int64_t plane,
                     const float* weights, float* to, int64_t to_pitch, bool accumulate) {
  using Float = typename V::Float;
  // For each tap and channel, either the weights of all results or all vectors of pixels are kept in
  // registers, whichever are fewer. The others are loaded one at a time. All indexes are constants: see
  // micro_kernel().
  constexpr bool kKeepsResults = kResults <= kPixelVectors;
  constexpr int kKept = static_cast<int>(least<V>(kResults, kPixelVectors));
  const auto run = [&]<int... kSum, int... kKeep>(std::integer_sequence<int, kSum...>,
                                                  std::integer_sequence<int, kKeep...>)
      __attribute__((always_inline)) {
    Float sums[] = {((void)kSum, V::zero())...};
    for (int64_t tap = 0; tap < taps.count; ++tap) {
      const float* pixels = source + taps.offsets[tap];
      for (int64_t channel = 0; channel < channels; ++channel, pixels += plane, weights += kResults) {
        if constexpr (kKeepsResults) {
          const Float by[] = {V::broadcast(weights + kKeep)...};
          ((sums[kSum] = V::fma(by[kSum % kKept], V::load(pixels + kSum / kKept * V::kLanes), sums[kSum])),
           ...);
        } else {
          const Float of[] = {V::load(pixels + kKeep * V::kLanes)...};
          ((sums[kSum] = V::fma(V::broadcast(weights + kSum / kKept), of[kSum % kKept], sums[kSum])), ...);
        }
      }
    }
    const auto place = [&](int sum) __attribute__((always_inline)) {
      const int kept = sum % kKept, other = sum / kKept;
      return to + (kKeepsResults ? kept * to_pitch + int64_t{other} * V::kLanes
                                 : other * to_pitch + int64_t{kept} * V::kLanes);
    };
    if (accumulate) ((sums[kSum] = V::add(V::load(place(kSum)), sums[kSum])), ...);
    (V::store(place(kSum), sums[kSum]), ...);
  };
  run(std::make_integer_sequence<int, kResults * kPixelVectors>{}, std::make_integer_sequence<int, kKept>{});
}

template <class V>
using MultiplyPlanes = void(const PlaneTaps& taps, int64_t channels, const float* source, int64_t plane,
                            const float* weights, float* to, int64_t to_pitch, bool accumulate);

/// multiply_planes() of kResults results for each number of pixel vectors, at [vectors - 1].
template <class V, int kResults, typename Vectors>
struct PlaneMicroKernelsOf;
template <class V, int kResults, int... kVectors>
struct PlaneMicroKernelsOf<V, kResults, std::integer_sequence<int, kVectors...>> {
  static constexpr MultiplyPlanes<V>* kOf[] = {&multiply_planes<V, kResults, kVectors + 1>...};
};

/// The micro-kernels for a number of results: of[v - 1] computes v vectors of pixels, up to `vectors`. That is
/// at most eight vectors, and at most as many sums as a product's micro-tile has.
template <class V>
struct PlaneMicroKernels {
  static constexpr int kMaxResults = V::kLanes / 2;
  MultiplyPlanes<V>* const* of;
  int64_t vectors;

  template <int kResults>
  static constexpr PlaneMicroKernels with() {
    constexpr int kSums = V::kMR * V::kVectors / kResults, kVectors = kSums < 8 ? kSums : 8;
    return {PlaneMicroKernelsOf<V, kResults, std::make_integer_sequence<int, kVectors>>::kOf, kVectors};
  }
  template <int... kResults>
  static PlaneMicroKernels at(int64_t results, std::integer_sequence<int, kResults...>) {
    constexpr PlaneMicroKernels kAll[] = {with<kResults + 1>()...};
    return kAll[results - 1];
  }
};

/// Returns the distance between the planes of the window. It leaves room for a vector past the end of a plane.
/// It is no multiple of 256 values, because planes at such distances would compete for the same sets of the
/// cache.
template <class V>
int64_t plane_of(const Window& window, int64_t images) {
  const int64_t size = images * window.size[0] * window.size[1] * window.size[2];
  const int64_t plane = (size + 31) / 16 * 16;
  return plane % 256 == 0 ? plane + 16 : plane;
}

/// Converts the windows of all images of the box to float32, at to[channel * plane + pixel].
template <class V, class Source>
void widen_planes(const BlockedConvolution& c, int64_t group, int64_t channel, int64_t channels,
                  const Box& box, const Window& window, int64_t plane, float* to) {
  const ConstImages& images = c.source;
  if (images.strides[2] == 1 && channels > 1) {  // one plane of each channel after the other
    for (int64_t i = 0; i < channels; ++i)
      widen_planes<V, Source>(c, group, channel + i, 1, box, window, plane, to + i * plane);
    return;
  }
  const auto* const data = static_cast<const typename Source::Storage*>(images.data) +
                           group * images.group_stride + channel * images.channel_stride;
  const int64_t size = window.size[2], first = window.first[2];
  const auto [begin, end] = inside_of<V>(c.axes[2], window);
  const auto clear_in_planes = [&](float* row, int64_t count) {
    for (int64_t i = 0; i < channels && count > 0; ++i) clear<V>(row + i * plane, count);
  };
  for (int64_t n = box.begin[0]; n < box.end[0]; ++n)
    for (int64_t d = window.first[0]; d < window.first[0] + window.size[0]; ++d)
      for (int64_t h = window.first[1]; h < window.first[1] + window.size[1]; ++h, to += size) {
        if (d < 0 || d >= c.axes[0].size || h < 0 || h >= c.axes[1].size) {
          clear_in_planes(to, size);
          continue;
        }
        const auto* const row = data + n * images.image_stride + d * images.strides[0] +
                                h * images.strides[1] + (first + begin) * images.strides[2];
        // The last vector reaches past the row, into memory that is written after it.
        if (images.strides[2] == 1)
          widen_pixels<V, Source>(row, 1, 1, 1, end - begin, to + begin);
        else
          for (int64_t w = begin; w < end; w += V::kLanes)
            pack_micro_panel<V, V::kLanes, Source>(row + (w - begin) * images.strides[2], images.strides[2],
                                                   images.channel_stride, least<V>(V::kLanes, end - w),
                                                   channels, to + w, plane);
        clear_in_planes(to, begin);
        clear_in_planes(to + end, size - end);
      }
}

/// Rounds and writes the results [output, output + count) of a row of the box. Their `sums` are `pitch`
/// apart. `spills` means that the memory behind the row may be overwritten, because it is written later.
template <class V, class Out>
void finish_row_of_planes(const BlockedConvolution& c, int64_t group, int64_t output, int64_t count,
                          int64_t out_at, int64_t pixels, const float* sums, int64_t pitch, bool spills) {
  auto* const out = static_cast<typename Out::Storage*>(c.out.data) + group * c.out.group_stride + out_at;
  for (int64_t o = output; o < output + count; ++o, sums += pitch) {
    const int64_t at = (group * c.outputs + o) * c.bias_stride;
    const auto bias = c.bias == nullptr
                          ? V::zero()
                          : load_from<V>({c.bias, c.bias_element, 0, 0, 0}, Element::kFloat32, at,
                                         /*stride=*/0, V::kLanes);
    const auto value_at = [&](int64_t i) __attribute__((always_inline)) {
      const auto sum = V::load(sums + i);
      return c.bias == nullptr ? sum : V::add(sum, bias);
    };
    int64_t i = 0;
    // store_pair() requires NaNs whose last 16 bits are 0. Source and weight have no others; a float32 bias
    // may.
    if (c.out.strides[2] == 1 && !V::is_nan(bias))
      for (; i + 2 * V::kLanes <= pixels; i += 2 * V::kLanes)
        Out::store_pair(out + o * c.out.channel_stride + i, value_at(i), value_at(i + V::kLanes));
    for (; i < pixels; i += V::kLanes) {
      const int64_t here = least<V>(V::kLanes, pixels - i);
      const auto value = value_at(i);
      auto* const to = out + o * c.out.channel_stride + i * c.out.strides[2];
      if (c.out.strides[2] == 1 && (spills || here == V::kLanes))
        Out::store(to, value);
      else
        Out::scatter(to, c.out.strides[2], here, value);
    }
  }
}

/// The window of one block, in planes, and the positions of the results in it.
struct PlaneBlock {
  Box box = {};
  Window window = {};
  int64_t plane = 0;  ///< see plane_of()
  PlaneTaps taps;

  int64_t images() const { return box.end[0] - box.begin[0]; }
};

template <class V>
void find_plane_taps(const BlockedConvolution& c, PlaneBlock& block) {
  int64_t offset = 0;
  for (int64_t d = 0; d < c.axes[0].taps; ++d)
    for (int64_t h = 0; h < c.axes[1].taps; ++h)
      for (int64_t w = 0; w < c.axes[2].taps; ++w)
        block.taps.offsets[offset++] =
            (d * c.axes[0].dilation * block.window.size[1] + h * c.axes[1].dilation) * block.window.size[2] +
            w * c.axes[2].dilation;
  block.taps.count = offset;
}

template <class V>
void convolve_few_with(const BlockedConvolution& c, const ConvolutionPart& part,
                       const ConvolutionScratch& scratch) {
  constexpr int64_t kNR = V::kVectors * V::kLanes;
  const int64_t taps = c.axes[0].taps * c.axes[1].taps * c.axes[2].taps;
  PlaneBlock block;
  // Returns the weights of `count` results, [(tap, channel)][result]. If `scratch.stays`, the panels
  // of all results are packed with the first block and kept. Packing may write past the end of a panel, into
  // the place of the next one, which is packed later.
  const auto panel_of = [&](int64_t index, int64_t output, int64_t count, int64_t channel, int64_t channels) {
    const int64_t before = (output - part.output_begin) * c.channels + channel * count;
    float* const panel = scratch.weights + (scratch.stays ? before * taps : 0);
    if (!scratch.stays || index == part.block_begin) {
      with_elements<V>(c.weight.element, c.source.element, [&](auto source) {
        pack_taps<V, decltype(source)>(c, part.group, output, count, channel, channels, panel);
      });
      for (int64_t k = 0; k < taps * channels; ++k)
        for (int64_t o = 0; o < count; ++o) panel[k * count + o] = panel[k * kNR + o];
    }
    return panel;
  };
  for (int64_t index = part.block_begin; index < part.block_end; ++index) {
    const Box& box = block.box = box_of<V>(c, index);
    const Window& window = block.window = window_of<V>(c.axes, box, 1);
    block.plane = plane_of<V>(window, block.images());
    find_plane_taps<V>(c, block);
    const int64_t depths = box.end[1] - box.begin[1], heights = box.end[2] - box.begin[2],
                  widths = box.end[3] - box.begin[3], row = window.size[2];
    // The results of an image's slice are one range of the window, which includes unused results between the
    // rows.
    const int64_t range = (heights - 1) * row + widths,
                  padded = (range + V::kLanes - 1) / V::kLanes * V::kLanes;
    const auto for_each_slice = [&](const auto& f) {
      float* sums = scratch.sums;
      for (int64_t n = 0; n < block.images(); ++n)
        for (int64_t d = 0; d < depths; ++d, sums += padded) f(n, d, sums);
    };
    for (int64_t output = part.output_begin; output < part.output_end;
         output += PlaneMicroKernels<V>::kMaxResults) {
      const int64_t count = least<V>(PlaneMicroKernels<V>::kMaxResults, part.output_end - output);
      const PlaneMicroKernels<V> tiles = PlaneMicroKernels<V>::at(
          count, std::make_integer_sequence<int, PlaneMicroKernels<V>::kMaxResults>{});
      for (int64_t channel = 0; channel < c.channels; channel += c.block_channels) {
        const int64_t channels = least<V>(c.block_channels, c.channels - channel);
        // If one block holds all channels, its window serves all results.
        if (output == part.output_begin || channels < c.channels)
          with_elements<V>(c.source.element, c.source.element, [&](auto source) {
            widen_planes<V, decltype(source)>(c, part.group, channel, channels, box, window, block.plane,
                                              scratch.source);
          });
        const float* const panel = panel_of(index, output, count, channel, channels);
        for_each_slice([&](int64_t n, int64_t d, float* sums) {
          const float* const source = scratch.source + (n * window.size[0] + d) * window.size[1] * row;
          for (int64_t i = 0; i < range; i += tiles.vectors * V::kLanes) {
            const int64_t vectors = least<V>(tiles.vectors, (range - i + V::kLanes - 1) / V::kLanes);
            tiles.of[vectors - 1](block.taps, channels, source + i, block.plane, panel, sums + i, kFewPitch,
                                  channel > 0);
          }
        });
      }
      with_elements<V>(c.out.element, c.out.element, [&](auto out) {
        for_each_slice([&](int64_t n, int64_t d, const float* sums) {
          const bool follow = c.out.strides[2] == 1 && c.out.strides[1] == widths && widths >= V::kLanes;
          for (int64_t h = 0; h < heights; ++h)
            finish_row_of_planes<V, decltype(out)>(
                c, part.group, output, count,
                (box.begin[0] + n) * c.out.image_stride + (box.begin[1] + d) * c.out.strides[0] +
                    (box.begin[2] + h) * c.out.strides[1] + box.begin[3] * c.out.strides[2],
                widths, sums + h * row, kFewPitch, follow && h + 1 < heights);
        });
      });
    }
  }
}

}  // namespace mantissa::kernels::cpu
