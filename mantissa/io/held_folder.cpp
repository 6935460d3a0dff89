#include "mantissa/io/held_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "mantissa/io/files_internal.h"
#include "mantissa/io/make_folders.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

/// Returns the path of each folder on the way, the root first.
std::vector<fs::path> folders_on(const fs::path& path) {
  std::vector<fs::path> folders;
  fs::path above;
  for (const fs::path& part : path) folders.push_back(above /= part);
  return folders;
}

std::pair<dev_t, ino_t> id_of(const fs::path& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? std::pair(found.st_dev, found.st_ino)
                                           : std::pair<dev_t, ino_t>();
}

/// Makes a folder with an unused name in `parent`: `NAME-rescued-N`. Returns an empty path if none can be
/// made.
fs::path make_rescued(const fs::path& parent, const fs::path& name, std::error_code& error) {
  for (int number = 1; number < 10'000; ++number) {
    const fs::path folder = parent / (name.string() + "-rescued-" + std::to_string(number));
    if (fs::create_directory(folder, error)) return folder;
    if (error && error != std::errc::file_exists) return {};
  }
  return {};
}

}  // namespace

HeldFolder::HeldFolder(const fs::path& folder) {
  fs::path whole = fs::absolute(folder).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "runs/1/"
  hold(std::move(whole));
}

HeldFolder::~HeldFolder() {
  if (fd_ >= 0) ::close(fd_);
}

void HeldFolder::hold(fs::path folder) {
  FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail_to_write(folder, "opening it", errno);
  std::vector<Id> ids;
  for (const fs::path& above : folders_on(folder)) ids.push_back(id_of(above));
  struct stat mine {};
  has_stable_inodes_ = ::fstat(opened.get(), &mine) == 0 && Id(mine.st_dev, mine.st_ino) == ids.back();
  if (fd_ >= 0) ::close(fd_);
  fd_ = opened.release();
  ids_ = std::move(ids);
  path_ = std::move(folder);
}

bool HeldFolder::is_lost() const {
  struct stat named {};
  if (::stat(path_.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;
  return has_stable_inodes_ && Id(named.st_dev, named.st_ino) != ids_.back();
}

const fs::path& HeldFolder::replace() {
  const std::vector<fs::path> folders = folders_on(path_);
  // Find the first folder that is gone or has been replaced by another of its name.
  size_t first = 0;
  while (first + 1 < folders.size() && id_of(folders[first]) == ids_[first]) ++first;
  const auto below = [&](fs::path folder) {
    for (size_t i = first + 1; i < folders.size(); ++i) folder /= folders[i].filename();
    return folder;
  };
  std::error_code error;
  fs::path made = fs::exists(fs::symlink_status(folders[first], error))
                      ? make_rescued(folders[first].parent_path(), folders[first].filename(), error)
                      : folders[first];
  const auto make = [&] {
    if (made.empty()) return false;
    fs::create_directories(below(made), error);
    return !error;
  };
  if (!make()) {
    const std::error_code why = error;
    const std::string name = folders[first].filename().string().substr(0, kMaxNameBytes);
    made = make_rescued(fs::temp_directory_path(error), name, error);
    TORCH_CHECK(make(), "no folder can be made in place of '", path_.string(),
                "', which is gone: ", why.message(),
                "; in the one for temporary files neither: ", error.message(), "; make the folder again");
  }
  hold(below(made));
  return path_;
}

}  // namespace mantissa
