#include "mantissa/io/files_internal.h"

#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <fcntl.h>
#include <ostream>
#include <streambuf>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

namespace mantissa {
namespace {

namespace fs = std::filesystem;

/// Buffers small writes and passes large ones through; throws at the first failure.
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

 private:
  void write_all(const char* data, std::streamsize n) {
    // After a failure nothing more may reach the file: otherwise a writer that swallows the exception would
    // get a file with a hole renamed into place.
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

bool is_dead(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

std::string reason(int error) { return std::generic_category().message(error); }

const char* cure(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or choose a folder on another disk";
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f) or choose another file system";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that you may write to";
    case ENOENT:
    case ENOTDIR:
      return "create its folder first or correct the path";
    case ENAMETOOLONG:
      return "choose a shorter name";
    case ELOOP:
      return "remove the symbolic link, or choose another folder";
    case EISDIR:
      return "move the folder of that name away, or choose another name";
    case EMFILE:
    case ENFILE:
      return "raise the limit on open files (ulimit -n)";
    default:
      return "check the disk or choose another folder";
  }
}

void fail_to_write(const fs::path& path, const char* doing, int error) {
  TORCH_CHECK(false, "cannot write '", path.string(), "': ", doing, " failed: ", reason(error), "; ",
              cure(error));
}

FileDescriptor open_folder_of(const fs::path& target, const fs::path& path) {
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail_to_write(path, "opening its folder", errno);
  return opened;
}

void sync_folder(const FileDescriptor& folder, const fs::path& path) {
  // Some file systems cannot sync a folder (EINVAL); there a rename is as durable as they make it.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail_to_write(path, "syncing its folder", errno);
}

void fill_file(const FileDescriptor& file, const fs::path& path,
               const std::function<void(std::ostream&)>& write) {
  FdStreambuf buffer(file.get(), path);
  std::ostream stream(&buffer);
  stream.exceptions(std::ios::badbit | std::ios::failbit);
  write(stream);
  buffer.flush();
  if (::fsync(file.get()) != 0) fail_to_write(path, "syncing to the disk", errno);
}

fs::path sibling(const fs::path& target, const char* kind) {
  static std::atomic<uint64_t> count{0};
  std::string name = ".";
  name += target.filename().string().substr(0, kMaxNameBytes);
  name += std::string(".") + kind + "-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  return target.parent_path() / name;
}

std::optional<SiblingName> parse_sibling(const std::string& file_name) {
  // A name without '-' has none before it either, and one that begins with it does not begin with '.'.
  const size_t count = file_name.rfind('-');
  const size_t pid = file_name.rfind('-', count - 1);
  if (pid == std::string::npos) return std::nullopt;
  const size_t kind = file_name.rfind('.', pid);
  if (kind == std::string::npos || kind < 2 || file_name.front() != '.') return std::nullopt;
  const auto number = [&](size_t begin, size_t end, auto& value) {
    const char *first = file_name.data() + begin, *last = file_name.data() + end;
    const auto [stop, error] = std::from_chars(first, last, value);
    return error == std::errc() && stop == last && value >= 0;
  };
  SiblingName parts{file_name.substr(1, kind - 1), file_name.substr(kind + 1, pid - kind - 1)};
  int64_t which = 0;
  if (!number(pid + 1, count, parts.pid) || !number(count + 1, file_name.size(), which)) return std::nullopt;
  return parts.pid > 0 ? std::optional(parts) : std::nullopt;
}

std::mutex& temporaries_mutex() {
  static std::mutex mutex;
  return mutex;
}

bool try_lock(const FileDescriptor& file) {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

bool is_abandoned(const fs::path& path, pid_t writer) {
  if (writer != getpid() && !is_dead(writer)) return false;
  const FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return opened.get() >= 0 && try_lock(opened);
}

void remove_abandoned_files(const fs::path& folder, const std::set<std::string>& names) {
  const std::lock_guard lock(temporaries_mutex());
  std::error_code error;
  std::vector<fs::path> found;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const auto parts = parse_sibling(entries->path().filename().string());
    if (parts && parts->kind == kTemporary && names.contains(parts->name)) found.push_back(entries->path());
  }
  for (const fs::path& path : found) {
    struct stat status {};
    const bool is_ours =
        ::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid();
    if (is_ours && is_abandoned(path, parse_sibling(path.filename().string())->pid)) ::unlink(path.c_str());
  }
}

}  // namespace mantissa
