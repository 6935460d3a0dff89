#include "mantissa/data/images/image_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <c10/util/Exception.h>

namespace mantissa {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 3> kExtensions{".jpg", ".jpeg", ".png"};

bool is_image_name(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

[[noreturn]] void refuse_path(const std::string& path, const std::error_code& why) {
  TORCH_CHECK(false, "cannot read '", path, "': ", why.message(), "; check the path and its permissions");
}

using FolderId = std::pair<dev_t, ino_t>;

FolderId id_of(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) refuse_path(folder.string(), {errno, std::generic_category()});
  return {status.st_dev, status.st_ino};
}

/// Returns the paths of a class's images: folder by folder, each sorted by name. A link to a folder that it is in is not followed.
std::vector<std::string> images_below(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>>
      found;  // folder and name, so that sorting goes by folders first
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, fs::directory_options::follow_directory_symlink, error);
  std::vector<FolderId> around = {id_of(folder)};  // the folders that the entry is in
  for (const fs::recursive_directory_iterator end; !error && entries != end; entries.increment(error)) {
    if (entries->is_directory(error)) {
      around.resize(static_cast<size_t>(entries.depth()) + 1);
      const FolderId id = id_of(entries->path());
      if (std::find(around.begin(), around.end(), id) != around.end()) entries.disable_recursion_pending();
      around.push_back(id);
    } else if (is_image_name(entries->path())) {
      found.emplace_back(entries->path().parent_path().string(), entries->path().filename().string());
    }
    error.clear();  // a link that leads nowhere is no folder
  }
  if (error) refuse_path(folder.string(), error);
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  paths.reserve(found.size());
  for (const auto& [parent, name] : found) paths.push_back(parent + "/" + name);
  return paths;
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& root, ImageClasses classes) {
  std::vector<std::string> images;  // of the folder itself
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_directory())
      classes_.push_back(entry->path().filename().string());
    else if (is_image_name(entry->path()))
      images.push_back(entry->path().string());
  }
  if (error) refuse_path(root.string(), error);
  std::sort(classes_.begin(), classes_.end());
  std::sort(images.begin(), images.end());
  if (!images.empty() && classes_.empty() && classes == ImageClasses::kFoldersOrNone) {
    add(std::move(images), 0);
    return;
  }
  TORCH_CHECK_VALUE(
      !classes_.empty(), "image folder '", root.string(), "' has no folders in it; give one that has ",
      classes == ImageClasses::kFolders ? "" : "images, or ", "a folder of images for each class");
  for (size_t label = 0; label < classes_.size(); ++label) {
    std::vector<std::string> paths = images_below(root / classes_[label]);
    TORCH_CHECK_VALUE(!paths.empty(), "image folder '", root.string(), "': the class '", classes_[label],
                      "' has no images; remove its folder, or put .jpg, .jpeg or .png files into it");
    add(std::move(paths), static_cast<int64_t>(label));
  }
  if (!images.empty())
    TORCH_WARN("image folder '", root.string(), "' has images beside the folders of its classes, such as '",
               fs::path(images[0]).filename().string(), "' (", images.size(),
               " in all), which are left out; move them into the folder of their class, or remove them");
}

void ImageFolder::add(std::vector<std::string> paths, int64_t label) {
  for (std::string& path : paths) files_.push_back({std::move(path), label});
}

std::string_view ImageFolder::read(int64_t index, std::string& buffer) const {
  const std::string& path = files_[static_cast<size_t>(index)].path;
  const auto refuse = [&] { refuse_path(path, {errno, std::generic_category()}); };
  const int file =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait for its writer
  if (file < 0) refuse();
  struct Closer {
    int file;
    ~Closer() { ::close(file); }
  } const closer{file};
  struct stat status {};
  if (::fstat(file, &status) != 0) refuse();
  TORCH_CHECK(S_ISREG(status.st_mode), "cannot read '", path,
              "': it is not a regular file; remove it from the folder");
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  TORCH_CHECK_VALUE(status.st_size <= kMaxBytes, "cannot read '", path, "': ", status.st_size,
                    " bytes are no image; remove it from the folder");
  buffer.resize(static_cast<size_t>(status.st_size));
  size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t got = ::read(file, buffer.data() + done, buffer.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse();
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  buffer.resize(done);  // the file may have become shorter meanwhile
  return buffer;
}

}  // namespace mantissa
