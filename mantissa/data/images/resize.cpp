#include "mantissa/data/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mantissa {
namespace {

// Builds for the CPU's vectors, which the loader of the program chooses from. ThreadSanitizer instruments the function by which it
// chooses, which then runs before the sanitizer is there.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define MANTISSA_RESIZE_BUILDS __attribute__((target_clones("avx2", "default")))
#else
#define MANTISSA_RESIZE_BUILDS
#endif

constexpr int kWeightBits = 22;  // two bits of headroom above 8 bits of pixel in 32
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

using Pixel32 = int32_t __attribute__((vector_size(16)));
using Pixel8 = uint8_t __attribute__((vector_size(4)));

/// Where the filter of an output begins and ends, and its centre and scale.
struct Support {
  double centre, inverse_scale;
  int64_t first, end;
};

Support support_of(double begin, double extent, int64_t inputs, int64_t outputs, int64_t output) {
  const double scale = extent / static_cast<double>(outputs), filter_scale = std::max(scale, 1.0);
  const double centre = begin + (static_cast<double>(output) + 0.5) * scale;
  const auto first = static_cast<int64_t>(std::floor(centre - filter_scale + 0.5));
  const auto end = static_cast<int64_t>(std::floor(centre + filter_scale + 0.5));
  return {centre, 1.0 / filter_scale, std::max<int64_t>(first, 0), std::min(end, inputs)};
}

uint8_t to_pixel(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

/// Filters one row: `out` [outputs, 3] from `in` [pixels, 3].
MANTISSA_RESIZE_BUILDS void filter_row(const uint8_t* in, const int32_t* first, const int32_t* weights,
                                       int64_t taps, int64_t outputs, uint8_t* out) {
  for (int64_t x = 0; x < outputs; ++x, weights += taps, out += 3) {
    const uint8_t* pixel = in + int64_t{first[x]} * 3;
    Pixel32 sum = {kHalf, kHalf, kHalf, kHalf};
    for (int64_t tap = 0; tap < taps; ++tap, pixel += 3) {
      Pixel8 bytes;
      std::memcpy(&bytes, pixel, sizeof bytes);
      sum += weights[tap] * __builtin_convertvector(bytes, Pixel32);
    }
    sum >>= kWeightBits;
    sum = sum < 0 ? 0 : sum;
    sum = sum > 255 ? 255 : sum;
    const Pixel8 bytes = __builtin_convertvector(sum, Pixel8);
    // The fourth byte is the next pixel's, which is written next; the last pixel has none behind it.
    std::memcpy(out, &bytes, x + 1 < outputs ? 4 : 3);
  }
}

/// Adds `weight` times a row of bytes to `sums`.
MANTISSA_RESIZE_BUILDS void add_row(const uint8_t* in, int32_t weight, int64_t bytes, int32_t* sums) {
  for (int64_t i = 0; i < bytes; ++i) sums[i] += weight * in[i];
}

MANTISSA_RESIZE_BUILDS void round_row(const int32_t* sums, int64_t bytes, uint8_t* out) {
  for (int64_t i = 0; i < bytes; ++i) out[i] = to_pixel(sums[i]);
}

}  // namespace

PixelRange pixels_read(double begin, double extent, int64_t inputs, int64_t outputs, int64_t window_begin,
                       int64_t window_size) {
  const int64_t first = support_of(begin, extent, inputs, outputs, window_begin).first;
  return {first, support_of(begin, extent, inputs, outputs, window_begin + window_size - 1).end - first};
}

void ImageResizer::Filter::build(double begin, double extent, int64_t inputs, int64_t outputs,
                                 int64_t window_begin, int64_t window_size) {
  taps = 0;
  for (int64_t i = 0; i < window_size; ++i) {
    const Support support = support_of(begin, extent, inputs, outputs, window_begin + i);
    taps = std::max(taps, support.end - support.first);
  }
  first.resize(static_cast<size_t>(window_size));
  weights.assign(static_cast<size_t>(window_size * taps), 0);
  std::vector<double> exact(static_cast<size_t>(taps));
  for (int64_t i = 0; i < window_size; ++i) {
    const Support support = support_of(begin, extent, inputs, outputs, window_begin + i);
    const int64_t count = support.end - support.first;
    double sum = 0;
    for (int64_t tap = 0; tap < count; ++tap) {
      const double distance =
          (static_cast<double>(tap + support.first) - support.centre + 0.5) * support.inverse_scale;
      exact[static_cast<size_t>(tap)] = std::max(1.0 - std::abs(distance), 0.0);
      sum += exact[static_cast<size_t>(tap)];
    }
    // All outputs have the same number of weights. One at the image's end begins earlier for this.
    const int64_t shift = std::max<int64_t>(support.first + taps - inputs, 0);
    first[static_cast<size_t>(i)] = static_cast<int32_t>(support.first - shift);
    for (int64_t tap = 0; tap < count; ++tap) {
      const double weight = sum == 0 ? 0 : exact[static_cast<size_t>(tap)] / sum;
      weights[static_cast<size_t>(i * taps + shift + tap)] =
          static_cast<int32_t>(std::floor(0.5 + weight * (1 << kWeightBits)));
    }
  }
}

PixelRange ImageResizer::Filter::rebase() {
  const auto [least, most] = std::minmax_element(first.begin(), first.end());
  const PixelRange range{*least, *most + taps - *least};
  for (int32_t& begin : first) begin -= static_cast<int32_t>(range.first);
  return range;
}

void ImageResizer::filter_along_rows(const Image& in, int64_t top, int64_t left, int64_t rows,
                                     Image& out) const {
  const auto outputs = std::ssize(along_rows_.first);
  out.reshape(rows, outputs);
  for (int64_t y = 0; y < rows; ++y)
    filter_row(in.row(top + y) + left * 3, along_rows_.first.data(), along_rows_.weights.data(),
               along_rows_.taps, outputs, out.row(y));
}

void ImageResizer::filter_along_columns(const Image& in, int64_t top, int64_t left, int64_t columns,
                                        Image& out) {
  const auto outputs = std::ssize(along_columns_.first);
  out.reshape(outputs, columns);
  sums_.resize(static_cast<size_t>(out.row_bytes()));
  const int32_t* weight = along_columns_.weights.data();
  for (int64_t y = 0; y < outputs; ++y) {
    std::fill(sums_.begin(), sums_.end(), kHalf);
    const int64_t first = top + along_columns_.first[static_cast<size_t>(y)];
    for (int64_t tap = 0; tap < along_columns_.taps; ++tap)
      add_row(in.row(first + tap) + left * 3, *weight++, out.row_bytes(), sums_.data());
    round_row(sums_.data(), out.row_bytes(), out.row(y));
  }
}

void ImageResizer::resize(const Image& image, const ResizeGeometry& geometry, Image& out) {
  const CropBox& window = geometry.window;
  const ImageRegion& source = geometry.source;
  along_rows_.build(source.left, source.width, image.width(), geometry.width, window.left, window.width);
  along_columns_.build(source.top, source.height, image.height(), geometry.height, window.top, window.height);
  const PixelRange columns = along_rows_.rebase(), rows = along_columns_.rebase();
  if (geometry.columns_first) {
    filter_along_columns(image, rows.first, columns.first, columns.count, between_);
    filter_along_rows(between_, 0, 0, window.height, out);
  } else {
    filter_along_rows(image, rows.first, columns.first, rows.count, between_);
    filter_along_columns(between_, 0, 0, window.width, out);
  }
}

}  // namespace mantissa
