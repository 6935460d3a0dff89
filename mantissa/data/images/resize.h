#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/data/images/image.h"

namespace mantissa {

/// What resize computes: `source`, a region of the image, is stretched to [height, width], and `window`, a part of the
/// result, is written.
struct ResizeGeometry {
  ImageRegion source;
  int64_t height = 0, width = 0;
  CropBox window;
  /// Filters columns before rows, which changes the rounding; see filters_columns_first().
  bool columns_first = false;
};

/// Returns the order in which Pillow, since version 13, filters an image that is resized to [height, width]: columns
/// first where this removes more pixels.
inline bool filters_columns_first(int64_t image_height, int64_t image_width, int64_t height, int64_t width) {
  return height < image_height && image_height - height > 2 * (image_width - width);
}

/// Pixels of one direction.
struct PixelRange {
  int64_t first = 0, count = 0;
};

/// Returns the pixels that a window of the outputs reads, where `inputs` pixels are there, and the `extent` from `begin` on
/// is stretched to `outputs`.
PixelRange pixels_read(double begin, double extent, int64_t inputs, int64_t outputs, int64_t window_begin,
                       int64_t window_size);

/// Resizes images with an antialiased bilinear filter (a triangle, widened by the factor of a reduction).
///
/// Numerics: the pixels are Pillow's, bit for bit: `image.resize((width, height), BILINEAR, box=source)`, cropped to
///           the window. Weights have 22 fractional bits, and both passes round to uint8.
/// Memory:   the pixels that the window needs, filtered in one direction. An object keeps it for the next image.
/// Threads:  one object belongs to one thread.
/// Errors:   none; the region must lie inside the image, and the window inside [height, width].
/// Example:  resize_test.cpp, Resize.AveragesWhereItReduces.
class ImageResizer {
 public:
  void resize(const Image& image, const ResizeGeometry& geometry, Image& out);

 private:
  /// The filter of one direction: for each output, where its inputs begin, and their weights.
  struct Filter {
    int64_t taps = 0;  ///< weights of an output, of which some may be 0
    std::vector<int32_t> first, weights;
    void build(double begin, double extent, int64_t inputs, int64_t outputs, int64_t window_begin,
               int64_t window_size);
    /// Makes the first input that is read number 0; returns which one it was, and how many are read.
    PixelRange rebase();
  };

  /// Filters along the rows: `rows` of them, from `top` on.
  void filter_along_rows(const Image& in, int64_t top, int64_t left, int64_t rows, Image& out) const;
  /// Filters along the columns: `columns` of them, from `left` on.
  void filter_along_columns(const Image& in, int64_t top, int64_t left, int64_t columns, Image& out);

  Filter along_rows_, along_columns_;
  Image between_;
  std::vector<int32_t> sums_;
};

}  // namespace mantissa
