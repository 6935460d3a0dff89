#pragma once

// The shapes of convolutions, for the dispatchers. Tiers do not include this header.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include <c10/util/irange.h>

#include "mantissa/kernels/cpu/convolution.h"
#include "mantissa/kernels/cpu/parts_internal.h"

namespace mantissa::kernels::cpu {

inline int64_t taps_of(const Axis* axes) { return axes[0].taps * axes[1].taps * axes[2].taps; }

template <typename Problem>
int64_t taps_of(const Problem& c) {
  return taps_of(c.axes);
}

/// Returns how many positions of an axis `extent` results read.
inline int64_t span(const Axis& axis, int64_t extent) {
  return axis.taps == 0 ? 0 : (extent - 1) * axis.step + (axis.taps - 1) * axis.dilation + 1;
}

/// Returns the pixels of the source that a block needs, including its border.
inline int64_t window_pixels(const Axis* axes, const int64_t* block) {
  return block[0] * span(axes[0], block[1]) * span(axes[1], block[2]) * span(axes[2], block[3]);
}

template <typename Problem>
int64_t size_along(const Problem& c, int dim) {
  return dim == 0 ? c.batch : c.axes[dim - 1].out;
}

template <typename Problem>
int64_t block_count(const Problem& c) {
  int64_t count = 1;
  for (const auto dim : c10::irange(4)) count *= divide_up(size_along(c, dim), c.block[dim]);
  return count;
}

template <typename Problem>
int64_t pixel_count(const Problem& c) {
  return c.batch * c.axes[0].out * c.axes[1].out * c.axes[2].out;
}

/// Drops skipped positions: of an axis with one tap, only the positions that are read remain.
template <typename Problem>
void drop_gaps(Problem& c) {
  for (const auto a : c10::irange(3)) {
    Axis& axis = c.axes[a];
    const bool inside = axis.origin >= 0 && axis.origin + (axis.out - 1) * axis.step < axis.size;
    // Channels that are not adjacent are read in vectors along the last axis, which must therefore stay
    // adjacent.
    if (axis.taps != 1 || !inside || (a == 2 && axis.step > 1 && c.source.channel_stride != 1)) continue;
    c.source.data = advanced(c.source.data, c.source.element, axis.origin * c.source.strides[a]);
    c.source.strides[a] *= axis.step;
    axis = {axis.out, axis.out, 1, 1, 1, 0};
  }
}

/// Makes blocks of at most `pixels` results that need at most `window` pixels of the source. It extends a
/// block from the last axis outwards as far as fits.
template <typename Problem>
void choose_blocks(Problem& c, int64_t pixels, int64_t window) {
  std::fill_n(c.block, 4, 1);
  for (int dim = 3; dim >= 0; --dim) {
    const int64_t size = size_along(c, dim);
    int64_t low = 1, high = size;  // the largest size that fits
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

/// True if a kernel has few enough taps and the window of a single result has at most `window` pixels.
template <typename Problem>
bool is_within(const Problem& c, int64_t window) {
  // Each axis is checked separately first, because larger values might overflow the products.
  for (const Axis& axis : c.axes)
    if (axis.taps > kConvolutionDepth || span(axis, 1) > window) return false;
  constexpr std::array<int64_t, 4> kPixel = {1, 1, 1, 1};
  return taps_of(c) <= kConvolutionDepth && window_pixels(c.axes, kPixel.data()) <= window;
}

/// True if each group has one channel and one result.
template <typename Problem>
bool is_depthwise(const Problem& c) {
  return c.groups > 1 && c.channels == 1 && c.outputs == 1;
}

/// Turns groups into channels, as the depthwise kernels expect.
template <typename Images>
void make_channels_of_groups(Images& images) {
  images.channel_stride = images.group_stride;
  images.group_stride = 0;
}

/// True if convolve_groups() handles it. `results` are its results, or their gradient.
template <typename Problem, typename Results>
bool has_rows_of_groups(const Problem& c, const Results& results, const ConvolutionBuild& build) {
  const auto* const end = std::end(kConvolutionGroups);
  // A group's channels form one chain there.
  if (taps_of(c) * c.channels > kConvolutionDepth) return false;
  return build.convolve_groups != nullptr && c.groups > 1 && c.channels == c.outputs &&
         std::find(std::begin(kConvolutionGroups), end, c.channels) != end &&
         c.groups * c.channels % (build.nr / 2) == 0 && results.channel_stride == 1 &&
         results.group_stride == c.channels &&
         c.source.group_stride == c.channels * c.source.channel_stride &&
         is_within(c, kConvolutionSource / kConvolutionLanes);
}

/// Turns the groups into one group whose channels are adjacent, as convolve_groups() expects.
template <typename Problem>
void join_groups(Problem& c) {
  c.outputs *= c.groups;
  c.groups = 1;
}

}  // namespace mantissa::kernels::cpu
