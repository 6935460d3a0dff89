#include "mantissa/io/atomic_file.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <ostream>
#include <streambuf>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/io/write_error_internal.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  /// 0, or the errno of what the system had still kept back (NFS and quotas report here).
  int close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_;
};

/// Buffers small writes, passes large ones through; throws on the first failure.
class FdStreambuf : public std::streambuf {
 public:
  FdStreambuf(int fd, const fs::path& path) : fd_(fd), path_(path) {
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }

  void flush() {
    const std::streamsize n = pptr() - pbase();
    setp(buffer_.data(), buffer_.data() + buffer_.size());
    write_all(buffer_.data(), n);
  }

 protected:
  int_type overflow(int_type c) override {
    flush();
    return traits_type::eq_int_type(c, traits_type::eof()) ? traits_type::not_eof(c) : sputc(char(c));
  }
  std::streamsize xsputn(const char* data, std::streamsize n) override {
    if (n <= epptr() - pptr()) {
      std::char_traits<char>::copy(pptr(), data, size_t(n));
      pbump(int(n));
      return n;
    }
    flush();
    write_all(data, n);
    return n;
  }
  int sync() override {
    flush();
    return 0;
  }

 private:
  void write_all(const char* data, std::streamsize n) {
    // After a failure nothing more may reach the file: a writer that swallows the exception must not get a
    // file with a hole in it renamed into place.
    if (error_ != 0) fail_to_write(path_, "writing", error_);
    while (n > 0) {
      const ssize_t written = ::write(fd_, data, size_t(n));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        error_ = written < 0 ? errno : ENOSPC;
        fail_to_write(path_, "writing", error_);
      }
      data += written;
      n -= written;
    }
  }

  int fd_;
  const fs::path& path_;
  int error_ = 0;
  std::array<char, 1 << 16> buffer_{};
};

/// The file itself behind any symbolic links, also one that does not exist yet; rename() would replace the
/// link.
fs::path resolve(fs::path path) {
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error || links == 40)
      fail_to_write(path, "following the symbolic link", error ? error.value() : ELOOP);
    path = path.parent_path() / next;
  }
  return path;
}

/// Removes the temporary file unless it has become the real one.
class TemporaryFile {
 public:
  TemporaryFile(const fs::path& target, mode_t mode) {
    static std::atomic<uint64_t> count{0};
    // Names end at 255 bytes; 200 leave room for what is added.
    std::string stem = ".";
    stem += target.filename().string().substr(0, 200);
    stem += ".tmp-" + std::to_string(getpid()) + "-";
    do {
      path_ = target.parent_path() / (stem + std::to_string(count++));
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    } while (fd_ < 0 && (errno == EINTR || errno == EEXIST));  // EEXIST: left by a killed process of this id
    if (fd_ < 0) fail_to_write(target, "creating a temporary file beside it", errno);
  }
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int fd() const { return fd_; }
  void rename_to(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      fail_to_write(target, "renaming the temporary file", errno);
    path_.clear();
  }

 private:
  fs::path path_;
  int fd_ = -1;
};

}  // namespace

void write_file_atomically(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  const fs::path target = resolve(path);
  TORCH_CHECK_VALUE(target.has_filename(), "cannot write '", path.string(),
                    "': it names no file; give a file name");
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  TORCH_CHECK_VALUE(!exists || S_ISREG(old.st_mode), "cannot write '", path.string(), "': it is ",
                    S_ISDIR(old.st_mode) ? "a folder" : "a device, pipe or socket",
                    ", which cannot be replaced in one move; give the name of a regular file");

  const fs::path folder_path = target.has_parent_path() ? target.parent_path() : fs::path(".");
  FileDescriptor folder(::open(folder_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) fail_to_write(path, "opening its folder", errno);

  TemporaryFile temporary(target, 0666);
  FileDescriptor file(temporary.fd());
  if (exists && ::fchmod(file.get(), old.st_mode & 07777) != 0)
    fail_to_write(path, "keeping its permissions", errno);
  FdStreambuf buffer(file.get(), path);
  std::ostream stream(&buffer);
  stream.exceptions(std::ios::badbit | std::ios::failbit);
  write(stream);
  buffer.flush();
  if (::fsync(file.get()) != 0) fail_to_write(path, "syncing to the disk", errno);
  if (const int error = file.close()) fail_to_write(path, "closing", error);
  temporary.rename_to(target);
  // Some file systems cannot sync a folder (EINVAL); there the rename is as durable as they make it.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail_to_write(path, "syncing its folder", errno);
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  write_file_atomically(
      path, [&](std::ostream& stream) { stream.write(content.data(), std::streamsize(content.size())); });
}

}  // namespace mantissa
