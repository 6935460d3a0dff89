#include "mantissa/io/append_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <ostream>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/io/atomic_file.h"
#include "mantissa/io/files_internal.h"

namespace mantissa {

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {}

AppendFile::AppendFile(std::filesystem::path path, Mode mode) : AppendFile(std::move(path)) {
  made_ = open(O_CREAT | O_EXCL, /*may_exist=*/mode == Mode::kContinue);
  if (!made_) {
    open(O_CREAT);
    drop_cut_line();
  }
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  // Nobody else writes the file, so an unfinished rewrite belongs to a killed process.
  remove_abandoned_files(folder, {path_.filename().string()});
  // The name of a new file must survive a loss of power, too. Folders that cannot be synced (EINVAL) are
  // ignored.
  if (const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

AppendFile::~AppendFile() {
  if (fd_ < 0) return;
  struct stat mine {};
  struct stat named {};
  // The file is useless if the disk had no room for a first piece.
  const bool is_useless = made_ && size_ == 0 && ::fstat(fd_, &mine) == 0 && mine.st_size == 0 &&
                          ::lstat(path_.c_str(), &named) == 0 && named.st_dev == mine.st_dev &&
                          named.st_ino == mine.st_ino;
  if (is_useless) ::unlink(path_.c_str());
  ::close(fd_);
}

/// Returns false if the file exists already and `may_exist` is set.
bool AppendFile::open(int flags, bool may_exist) {
  if (fd_ >= 0) ::close(fd_);
  do {
    // Another user of the folder must not lead us to a different file through a link.
    fd_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0666);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0 && errno == EEXIST && may_exist) return false;
  if (fd_ < 0) fail_to_write(path_, "opening", errno);
  struct stat found {};
  if (::fstat(fd_, &found) != 0) fail_to_write(path_, "reading its status", errno);
  TORCH_CHECK_VALUE(S_ISREG(found.st_mode), "cannot write '", path_.string(),
                    "': it is not a regular file; give the name of one");
  // Other errors mean that the file system has no locks. There, runs are not kept apart.
  TORCH_CHECK(::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK, "cannot write '", path_.string(),
              "': another run is writing it; give each run a folder of its own");
  size_ = static_cast<uint64_t>(found.st_size);
  return true;
}

void AppendFile::check_not_removed() const {
  struct stat found {};
  if (::fstat(fd_, &found) != 0) fail_to_write(path_, "reading its status", errno);
  TORCH_CHECK(found.st_nlink > 0, "cannot write '", path_.string(),
              "': it was removed, or its folder was; do not remove a run's files while it is running");
}

void AppendFile::drop_cut_line() {
  std::array<char, 4096> block{};
  uint64_t whole = size_;
  bool found = false;
  while (whole > 0 && !found) {
    const size_t n = std::min<uint64_t>(block.size(), whole);
    if (::pread(fd_, block.data(), n, static_cast<off_t>(whole - n)) != static_cast<ssize_t>(n))
      fail_to_write(path_, "reading its end", errno);
    const auto end = std::find(block.rend() - static_cast<ptrdiff_t>(n), block.rend(), '\n');
    found = end != block.rend();
    whole -= n;
    if (found) whole += static_cast<uint64_t>(block.rend() - end);
  }
  if (whole < size_ && ::ftruncate(fd_, static_cast<off_t>(whole)) != 0)
    fail_to_write(path_, "dropping a line without an end", errno);
  size_ = whole;
}

void AppendFile::append(std::string_view piece) {
  check_not_removed();
  for (std::string_view rest = piece; !rest.empty();) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      // Cut off the written part of the piece: it would be a row that ends in the middle. If even this fails,
      // it stays.
      [[maybe_unused]] const int cut = ::ftruncate(fd_, static_cast<off_t>(size_));
      fail_to_write(path_, "writing", error);
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  size_ += piece.size();
}

void AppendFile::sync() {
  check_not_removed();
  if (::fsync(fd_) != 0) fail_to_write(path_, "syncing to the disk", errno);
}

void AppendFile::edit_lines(const std::function<bool(std::string& line)>& edit) {
  check_not_removed();
  if (std::error_code error; std::filesystem::is_symlink(path_, error))
    fail_to_write(path_, "opening", ELOOP);
  write_file_atomically(
      path_,
      [&](std::ostream& out) {
        std::ifstream in(path_, std::ios::binary);
        for (std::string line; std::getline(in, line);)
          if (edit(line)) out << line << '\n';
        if (!in.eof()) fail_to_write(path_, "reading it for a rewrite", errno);
      },
      Links::kReplace);
  open(0);
}

}  // namespace mantissa
