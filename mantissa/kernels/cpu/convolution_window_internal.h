#pragma once

// Blocks of a convolution's results, and the window of the source that a block reads: widened to float32,
// with adjacent channels and zeros around the image. It is written once for all vector tiers and follows the
// rules of gemm_blocked_internal.h.

#include <cstdint>
#include <cstring>

#include "mantissa/kernels/cpu/convolution_kernel.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"

namespace mantissa::kernels::cpu {

/// Images [begin[0], end[0]), and ranges of the three axes.
struct Box {
  int64_t begin[4], end[4];
};

/// The layout of a block's source in scratch: the extents along the axes, the position of the first pixel,
/// and the channels.
struct Window {
  int64_t size[3], first[3], channels;

  int64_t row() const { return size[2] * channels; }
};

template <class V>
Window window_of(const Axis* axes, const Box& box, int64_t channels) {
  Window window{{}, {}, channels};
  for (int a = 0; a < 3; ++a) {
    const Axis& axis = axes[a];
    const int64_t extent = box.end[a + 1] - box.begin[a + 1];
    window.size[a] = (extent - 1) * axis.step + (axis.taps - 1) * axis.dilation + 1;
    window.first[a] = axis.origin + box.begin[a + 1] * axis.step;
  }
  return window;
}

template <class V>
void clear(float* to, int64_t count) {
  std::memset(to, 0, static_cast<size_t>(count) * sizeof(float));
}

/// Widens to to[pixel * channels + channel]. Source pixels are `pixel_stride` apart. May write a vector past
/// the end.
template <class V, class Source>
void widen_pixels(const typename Source::Storage* from, int64_t channel_stride, int64_t pixel_stride,
                  int64_t channels, int64_t pixels, float* to) {
  if (channel_stride == 1 && pixel_stride == channels) {
    const int64_t count = channels * pixels, whole = count / V::kLanes * V::kLanes;
    for (int64_t i = 0; i < whole; i += V::kLanes) V::store(to + i, Source::load(from + i));
    if (whole < count) V::store(to + whole, Source::load_some(from + whole, count - whole));
    return;
  }
  // Channels that fill less than a vector come first, because their store reaches into the next pixel, which
  // is written later.
  const int64_t whole = channels / V::kLanes * V::kLanes;
  if (whole < channels)
    pack_micro_panel<V, V::kLanes, Source>(from + whole * channel_stride, channel_stride, pixel_stride,
                                           channels - whole, pixels, to + whole, channels);
  constexpr int kNR = V::kVectors * V::kLanes;
  int64_t c = 0;
  if (channel_stride == 1)
    for (; c + kNR <= whole; c += kNR)
      pack_micro_panel<V, kNR, Source>(from + c, 1, pixel_stride, kNR, pixels, to + c, channels);
  for (; c < whole; c += V::kLanes)
    pack_micro_panel<V, V::kLanes, Source>(from + c * channel_stride, channel_stride, pixel_stride, V::kLanes,
                                           pixels, to + c, channels);
}

struct Range {
  int64_t begin, end;
};

/// Returns the positions of a window's row that lie inside of the image, counted from the row's first.
template <class V>
Range inside_of(const Axis& axis, const Window& window) {
  const int64_t first = window.first[2], size = window.size[2];
  const int64_t begin = first < 0 ? least<V>(-first, size) : 0;
  const int64_t inside = axis.size - first < size ? axis.size - first : size;
  return {begin, inside > begin ? inside : begin};
}

/// Widens one row of a window. `from` is the address where position 0 of the last axis would be.
template <class V, class Source>
void widen_row(const Axis& axis, const ConstImages& images, const typename Source::Storage* from,
               const Window& window, float* to) {
  const int64_t first = window.first[2], size = window.size[2], channels = window.channels;
  const auto [begin, end] = inside_of<V>(axis, window);
  if (begin < end)
    widen_pixels<V, Source>(from + (first + begin) * images.strides[2], images.channel_stride,
                            images.strides[2], channels, end - begin, to + begin * channels);
  clear<V>(to, begin * channels);
  clear<V>(to + end * channels, (size - end) * channels);
}

/// Widens the window of all the box's images, one after the other.
template <class V>
void widen_window(const Axis* axes, const ConstImages& images, int64_t group, int64_t channel, const Box& box,
                  const Window& window, float* to) {
  with_elements<V>(images.element, images.element, [&](auto source) {
    using Source = decltype(source);
    const auto* const data = static_cast<const typename Source::Storage*>(images.data) +
                             group * images.group_stride + channel * images.channel_stride;
    for (int64_t n = box.begin[0]; n < box.end[0]; ++n)
      for (int64_t d = window.first[0]; d < window.first[0] + window.size[0]; ++d)
        for (int64_t h = window.first[1]; h < window.first[1] + window.size[1]; ++h, to += window.row()) {
          if (d < 0 || d >= axes[0].size || h < 0 || h >= axes[1].size)
            clear<V>(to, window.row());
          else
            widen_row<V, Source>(
                axes[2], images,
                data + n * images.image_stride + d * images.strides[0] + h * images.strides[1], window, to);
        }
  });
}

/// Returns block `index` of the results.
template <class V, class Problem>
Box box_of(const Problem& c, int64_t index) {
  Box box{};
  for (int a = 3; a >= 0; --a) {
    const int64_t size = a == 0 ? c.batch : c.axes[a - 1].out;
    const int64_t blocks = (size + c.block[a] - 1) / c.block[a];
    box.begin[a] = index % blocks * c.block[a];
    box.end[a] = least<V>(box.begin[a] + c.block[a], size);
    index /= blocks;
  }
  return box;
}

/// Returns the box's positions along axis `a`.
template <class V>
Range positions_of(const Box& box, int a) {
  return {box.begin[a + 1], box.end[a + 1]};
}

}  // namespace mantissa::kernels::cpu
