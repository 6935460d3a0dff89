#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mantissa {

/// A rectangle of an image, in whole pixels.
struct CropBox {
  int64_t top = 0, left = 0, height = 0, width = 0;
  friend bool operator==(const CropBox&, const CropBox&) = default;
};

/// A rectangle of an image, whose edges may lie inside pixels.
struct ImageRegion {
  double top = 0, left = 0, height = 0, width = 0;
};

/// An RGB image in memory: uint8 [height, width, 3].
///
/// It is a buffer to use again: reshape() allocates only where the image has never been as large.
class Image {
 public:
  /// Bytes behind the last pixel that may be read, so that a kernel can load four bytes for a pixel.
  static constexpr int64_t kPadding = 16;

  Image() = default;
  Image(int64_t height, int64_t width) { reshape(height, width); }

  /// Changes the size. The pixels are then undefined.
  void reshape(int64_t height, int64_t width) {
    const int64_t bytes = height * width * 3;
    if (bytes > capacity_ || !pixels_) {
      pixels_ = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(bytes + kPadding));
      capacity_ = bytes;
    }
    height_ = height;
    width_ = width;
  }

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  /// Units: bytes.
  int64_t row_bytes() const { return width_ * 3; }
  int64_t bytes() const { return height_ * row_bytes(); }
  uint8_t* row(int64_t y) { return pixels_.get() + y * row_bytes(); }
  const uint8_t* row(int64_t y) const { return pixels_.get() + y * row_bytes(); }
  uint8_t* data() { return pixels_.get(); }
  const uint8_t* data() const { return pixels_.get(); }

 private:
  std::unique_ptr<uint8_t[]> pixels_;
  int64_t height_ = 0, width_ = 0, capacity_ = 0;
};

}  // namespace mantissa
