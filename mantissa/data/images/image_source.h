#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

/// Encoded images with a class each, by number: where an ImageDataset reads from.
///
/// Threads: several threads read at once.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  /// Returns the number of images.
  virtual int64_t size() const = 0;
  /// Names of the classes; a label is a position in it.
  virtual const std::vector<std::string>& classes() const = 0;
  virtual int64_t label(int64_t index) const = 0;
  /// Returns what messages call the image, such as its path.
  virtual std::string name(int64_t index) const = 0;
  /// Returns the encoded image, for open_image(). It lies in `buffer`, or in memory that lives as long as the source.
  /// Errors: c10::Error that names the file if it cannot be read.
  virtual std::string_view read(int64_t index, std::string& buffer) const = 0;
};

}  // namespace mantissa
