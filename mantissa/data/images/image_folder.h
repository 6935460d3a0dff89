#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "mantissa/data/images/image_source.h"

namespace mantissa {

/// Where the classes of a folder's images come from.
enum class ImageClasses {
  kFolders,        ///< each folder in it is a class
  kFoldersOrNone,  ///< the images may also be in the folder itself, without classes, for predictions
};

/// The images of a folder that has one folder for each class (torchvision: ImageFolder).
///
/// The classes are the folders' names, sorted; a class has every file below its folder whose name ends in .jpg, .jpeg or
/// .png, in any case. The order is torchvision's. Symbolic links are followed. Images without classes are sorted by name,
/// and have the label 0. Images beside folders are left out with a warning.
/// Memory: the paths.
class ImageFolder final : public ImageSource {
 public:
  /// Reads the names, and no image.
  /// Errors: c10::Error that names the folder if it cannot be read; c10::ValueError that names it if it has no folders in it (with
  ///         ImageClasses::kFoldersOrNone: and no images), and that names the class if a class has no image.
  explicit ImageFolder(const std::filesystem::path& root, ImageClasses classes = ImageClasses::kFolders);

  int64_t size() const override { return std::ssize(files_); }
  const std::vector<std::string>& classes() const override { return classes_; }
  int64_t label(int64_t index) const override { return files_[static_cast<size_t>(index)].label; }
  std::string name(int64_t index) const override { return files_[static_cast<size_t>(index)].path; }
  std::string_view read(int64_t index, std::string& buffer) const override;

 private:
  struct File {
    std::string path;
    int64_t label;
  };
  void add(std::vector<std::string> paths, int64_t label);

  std::vector<std::string> classes_;
  std::vector<File> files_;
};

}  // namespace mantissa
