#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "mantissa/data/images/decoder.h"

namespace mantissa {

/// A form of encoded images: a row of the table in decoder.cpp, and a file.
struct ImageCodec {
  std::string_view magic;  ///< the first bytes of every file of this form
  std::unique_ptr<ImageDecoder> (*open)(std::string_view bytes, const std::string& name);
};

extern const ImageCodec kJpegCodec, kPngCodec, kRawCodec;

/// Refuses an image that is empty or has more than kMaxImagePixels pixels.
void check_image_size(int64_t height, int64_t width, const std::string& name);

/// Returns the bytes of `image` in the raw form: a header of 16 bytes (magic, height, width), and the pixels.
std::string encode_raw(const Image& image);

/// Returns `image` as JPEG of a quality from 1 to 100. `name` begins the message.
/// Errors: c10::ValueError for more than 65,500 rows or columns.
std::string encode_jpeg(const Image& image, int64_t quality, const std::string& name);

}  // namespace mantissa
