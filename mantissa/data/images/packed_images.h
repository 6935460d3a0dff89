#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mantissa/data/images/image_source.h"

namespace mantissa {

/// The images of one file, which pack_images() has written and which is mapped into memory: no file is opened for an
/// image, and raw pixels need no decoding.
///
/// The file must not become shorter while it is open, because reading behind its end ends the process (SIGBUS).
/// The format is described in docs/packed-images.md.
class PackedImages final : public ImageSource {
 public:
  /// Reads the table at the end, and no image.
  /// Errors: c10::Error that names the file if it cannot be read; c10::ValueError that names it if it is none of this form, truncated,
  ///         or has a table that does not fit.
  explicit PackedImages(const std::filesystem::path& path);

  int64_t size() const override { return std::ssize(entries_); }
  const std::vector<std::string>& classes() const override { return classes_; }
  int64_t label(int64_t index) const override { return entries_[static_cast<size_t>(index)].label; }
  std::string name(int64_t index) const override;
  std::string_view read(int64_t index, std::string& buffer) const override;

 private:
  struct Entry {
    uint64_t begin, size;
    int64_t label;
  };
  std::string path_;
  std::shared_ptr<const char> bytes_;  ///< the mapping
  std::vector<Entry> entries_;
  std::vector<std::string> classes_, names_;
};

struct PackOptions {
  /// Reduces every image whose shorter side is longer; 0 keeps the size.
  int64_t shorter_side = 0;
  /// 1 to 100: stores JPEG of this quality; 0: stores pixels as they are, which is the fastest to read and takes 3 bytes
  /// for each.
  int64_t jpeg_quality = 0;
  /// Is called with the message about an image that cannot be decoded, which is then left out. If empty, the error is
  /// thrown.
  std::function<void(const std::string& why)> skip = {};
};

/// What pack_images() has written.
struct PackSummary {
  int64_t images = 0, skipped = 0;
  uint64_t bytes = 0;
};

/// Writes all images of `source` as one file for PackedImages. Readers see it complete or not at all.
/// Memory: one image.
/// Errors: c10::ValueError for options out of range, if no image is left, or that names an image that cannot be decoded; c10::Error
///         that names the file if it cannot be written.
PackSummary pack_images(const ImageSource& source, const std::filesystem::path& path,
                        const PackOptions& options = {});

}  // namespace mantissa
