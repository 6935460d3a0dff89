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

/// Closes itself.
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
  /// 0, or the errno of what the system had still kept back (NFS and quotas report here).
  int close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int fd_;
};

/// The system's own words for an errno.
std::string reason(int error);
/// What a user can do about one that came while writing.
const char* cure(int error);
/// c10::Error "cannot write 'PATH': DOING failed: REASON; CURE".
[[noreturn]] void fail_to_write(const std::filesystem::path& path, const char* doing, int error);

/// The folder that holds `target`, opened to be synced. `path` is what errors name.
FileDescriptor open_folder_of(const std::filesystem::path& target, const std::filesystem::path& path);
void sync_folder(const FileDescriptor& folder, const std::filesystem::path& path);

/// Runs `write` on a stream into the file, which throws on the first failure, and syncs the file to the disk.
void fill_file(const FileDescriptor& file, const std::filesystem::path& path,
               const std::function<void(std::ostream&)>& write);

/// What stands in a sibling's name `.NAME.KIND-PID-N`.
struct SiblingName {
  std::string name, kind;
  pid_t pid = 0;
};
/// Names end at 255 bytes; this leaves room for what is added. Of a longer one the beginning is taken.
inline constexpr size_t kLongestName = 200;
/// A name of its own for a sibling of `target`: `.NAME.KIND-PID-N`.
std::filesystem::path sibling(const std::filesystem::path& target, const char* kind);
std::optional<SiblingName> parse_sibling(const std::string& file_name);

/// Of writers' temporary siblings, which they hold locked (flock) as long as they live: a process id alone
/// says little where containers number their processes anew.
inline constexpr const char* kTemporary = "tmp";
/// Held between making a temporary sibling and locking it, and by who looks for those that nobody holds.
std::mutex& temporaries_mutex();
/// Takes the lock; false if somebody holds it. True where the file system has no locks.
bool try_lock(const FileDescriptor& file);
/// Whether whoever made a temporary file or folder is gone. Our own id may be that of an earlier process, as
/// where each container's first process is number 1: then the lock alone tells.
bool is_abandoned(const std::filesystem::path& path, pid_t writer);
/// Removes from `folder` the temporary files of files of these names that a killed process of this user has
/// left there. For folders that hold other things, too: all else stays, and what cannot be removed does.
void remove_abandoned_files(const std::filesystem::path& folder, const std::set<std::string>& names);

}  // namespace mantissa
