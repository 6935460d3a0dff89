#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "mantissa/data/images/image.h"

namespace mantissa {

/// Where the decoded pixels lie in the original image: (top, left) is the position of the first one. The decoded
/// image is 1/`shrink` of the original size.
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
  /// Decodes the pixels of `box` into `out`. The box must lie inside the image. The result may contain further
  /// pixels, and may be smaller by a factor of at most `max_shrink`. Call this function once.
  ///
  /// Numerics: grey becomes three equal channels; CMYK becomes RGB as in Pillow; transparency is dropped.
  /// Errors:   c10::ValueError for truncated or corrupt data. Its message begins with the name.
  virtual DecodedPart decode(const CropBox& box, int64_t max_shrink, Image& out) = 0;

 protected:
  ImageDecoder() = default;
  int64_t height_ = 0, width_ = 0;
};

/// The largest number of pixels that an image may have, as in Pillow. It keeps a small file from taking all memory.
constexpr int64_t kMaxImagePixels = 178'956'970;

/// Reads the header of a JPEG or PNG file, or of an image in a packed file (docs/packed-images.md). `bytes` must
/// outlive the decoder.
/// Errors: c10::ValueError, whose message begins with `name`, if the content is none of these formats, if the header
///         is truncated or corrupt, or if the image has more than kMaxImagePixels pixels. The file's extension does
///         not matter.
std::unique_ptr<ImageDecoder> open_image(std::string_view bytes, const std::string& name);

}  // namespace mantissa
