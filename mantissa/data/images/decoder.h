#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "mantissa/data/images/image.h"

namespace mantissa {

/// The pixels that a decoder has made: an image at 1/`shrink` of the size, whose first pixel lies at (top, left) of the
/// image as the file has it.
struct DecodedPart {
  int64_t top = 0, left = 0, shrink = 1;
};

/// An encoded image whose header has been read. decode() then makes the pixels that are wanted.
///
/// Threads: one object belongs to one thread.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  /// Decodes the pixels of `box`, which must lie inside the image, to `out`. A format may decode more of them, and at a
  /// smaller size, but at most `max_shrink` times smaller. To be called once.
  ///
  /// Numerics: grey becomes three equal channels; CMYK becomes RGB as in Pillow; transparency is dropped.
  /// Errors:   c10::ValueError that begins with the name for data that are truncated or corrupt.
  virtual DecodedPart decode(const CropBox& box, int64_t max_shrink, Image& out) = 0;

 protected:
  ImageDecoder() = default;
  int64_t height_ = 0, width_ = 0;
};

/// An image has at most so many pixels, as in Pillow, so that a small file cannot take all memory.
constexpr int64_t kMaxImagePixels = 178'956'970;

/// Reads the header of a JPEG or PNG file, or of an image of a packed file. `name` begins the messages; `bytes` must
/// outlive the decoder.
/// Errors: c10::ValueError that begins with `name` if the content has none of these forms (whatever the file is called), for a
///         header that is truncated or corrupt, and for more than kMaxImagePixels pixels.
std::unique_ptr<ImageDecoder> open_image(std::string_view bytes, const std::string& name);

}  // namespace mantissa
