#pragma once

#include <cerrno>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>

namespace mantissa {

/// An owned file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  /// Returns 0, or the errno of a delayed error (NFS and quotas report those here).
  int close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_;
};

/// Returns the system's text for an errno.
std::string reason(int error);
/// Returns what a user can do about an errno of a write.
const char* cure(int error);
/// Throws c10::Error "cannot write 'PATH': DOING failed: REASON; CURE".
[[noreturn]] void fail_to_write(const std::filesystem::path& path, const char* doing, int error);

/// Opens the folder of `target`, to sync it. Errors name `path`.
FileDescriptor open_folder_of(const std::filesystem::path& target, const std::filesystem::path& path);
void sync_folder(const FileDescriptor& folder, const std::filesystem::path& path);

/// Runs `write` on a stream into the file, which throws at the first failure, and syncs the file to the disk.
void fill_file(const FileDescriptor& file, const std::filesystem::path& path,
               const std::function<void(std::ostream&)>& write);

/// The parts of a sibling's name `.NAME.KIND-PID-N`.
struct SiblingName {
  std::string name, kind;
  pid_t pid = 0;
};
/// Names are limited to 255 bytes; this leaves room for the additions. Longer names are cut.
inline constexpr size_t kMaxNameBytes = 200;
/// Returns a unique name for a sibling of `target`: `.NAME.KIND-PID-N`.
std::filesystem::path sibling(const std::filesystem::path& target, const char* kind);
std::optional<SiblingName> parse_sibling(const std::string& file_name);

/// The kind of writers' temporary siblings. A writer holds them locked (flock) while it lives; a process id
/// alone is unreliable, because each container numbers its processes anew.
inline constexpr const char* kTemporary = "tmp";
/// Held from making a temporary sibling until it is locked, and while searching for abandoned siblings.
std::mutex& temporaries_mutex();
/// Takes the lock; returns false if somebody holds it. Returns true if the file system has no locks.
bool try_lock(const FileDescriptor& file);
/// Whether the writer of a temporary file or folder is gone. Our own id may be that of an earlier process,
/// because each container's first process is number 1; then only the lock decides.
bool is_abandoned(const std::filesystem::path& path, pid_t writer);
/// Removes the temporary files that this user's killed processes have left in `folder` for files with these
/// names. It works in folders that hold other things: everything else stays, and so do files that cannot be
/// removed.
void remove_abandoned_files(const std::filesystem::path& folder, const std::set<std::string>& names);

}  // namespace mantissa
