#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "mantissa/data/images/image.h"

namespace mantissa {

/// A smooth image, which JPEG changes little: the three channels grow along rows, columns and both.
inline Image gradient_image(int64_t height, int64_t width) {
  Image image(height, width);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      uint8_t* const pixel = image.row(y) + x * 3;
      pixel[0] = static_cast<uint8_t>(255 * y / height);
      pixel[1] = static_cast<uint8_t>(255 * x / width);
      pixel[2] = static_cast<uint8_t>(255 * (x + y) / (height + width));
    }
  return image;
}

inline std::string bytes_of(const Image& image) {
  return {reinterpret_cast<const char*>(image.data()), static_cast<size_t>(image.bytes())};
}

inline void write_image_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace mantissa
