#include "mantissa/io/atomic_file.h"

#include <cerrno>
#include <fcntl.h>
#include <mutex>
#include <ostream>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "mantissa/io/files_internal.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

/// A temporary file that is removed unless it becomes the real one.
class TemporaryFile {
 public:
  TemporaryFile(const fs::path& target, mode_t mode) {
    const std::lock_guard lock(temporaries_mutex());
    do {
      path_ = sibling(target, kTemporary);
      file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    } while (file_.get() < 0 && (errno == EINTR || errno == EEXIST));  // EEXIST: left by a killed process
    if (file_.get() < 0) fail_to_write(target, "creating a temporary file beside it", errno);
    // Lock a second descriptor of the same open file: the lock then outlives the first one, which is closed
    // before the move.
    held_ = FileDescriptor(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    try_lock(held_);
  }
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  FileDescriptor& file() { return file_; }
  void rename_to(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      fail_to_write(target, "renaming the temporary file", errno);
    path_.clear();
  }

 private:
  fs::path path_;
  FileDescriptor file_, held_;
};

}  // namespace

fs::path resolve_links(fs::path path) {
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error || links == 40)
      fail_to_write(path, "following the symbolic link", error ? error.value() : ELOOP);
    path = path.parent_path() / next;
  }
  return path;
}

void write_file_atomically(const fs::path& path, const std::function<void(std::ostream&)>& write,
                           Links links) {
  const fs::path target = links == Links::kFollow ? resolve_links(path) : path;
  TORCH_CHECK_VALUE(target.has_filename(), "cannot write '", path.string(),
                    "': it names no file; give a file name");
  struct stat old {};
  // A link that will be replaced has no permissions to keep.
  const bool exists = ::lstat(target.c_str(), &old) == 0 && !S_ISLNK(old.st_mode);
  TORCH_CHECK_VALUE(!exists || S_ISREG(old.st_mode), "cannot write '", path.string(), "': it is ",
                    S_ISDIR(old.st_mode) ? "a folder" : "a device, pipe or socket",
                    ", which cannot be replaced atomically; give the name of a regular file");

  const FileDescriptor folder = open_folder_of(target, path);
  TemporaryFile temporary(target, 0666);
  if (exists && ::fchmod(temporary.file().get(), old.st_mode & 07777) != 0)
    fail_to_write(path, "keeping its permissions", errno);
  fill_file(temporary.file(), path, write);
  if (const int error = temporary.file().close()) fail_to_write(path, "closing", error);
  temporary.rename_to(target);
  sync_folder(folder, path);
}

void write_file_atomically(const fs::path& path, std::string_view content, Links links) {
  write_file_atomically(
      path, [&](std::ostream& stream) { stream.write(content.data(), std::streamsize(content.size())); },
      links);
}

}  // namespace mantissa
