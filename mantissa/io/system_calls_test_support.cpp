#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <fcntl.h>
#include <mutex>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "mantissa/io/system_calls_test_support_internal.h"

namespace mantissa {

namespace fs = std::filesystem;

fs::path path_of(int fd) {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored);
}

namespace system_calls {
namespace {

std::recursive_mutex hook_mutex;
std::atomic<const std::function<Answer(const Call&)>*> hook = nullptr;

/// Sets errno if the call is to fail, and leaves it as it is otherwise. `file` is called only if the answer may
/// depend on it.
template <typename File>
Answer answer_to(const char* name, const File& file) {
  if (!hook) return {};  // without the lock, which a forked process might find locked
  const std::lock_guard lock(hook_mutex);
  const int before = errno;
  const auto* decide = hook.load();
  const Answer answer = decide ? (*decide)({name, file()}) : Answer{};
  errno = answer.error != 0 ? answer.error : before;
  return answer;
}

/// Returns the path of the entry `name` of a folder, without following it if it is a link.
fs::path path_in(int folder, const fs::path& name) {
  const fs::path whole = (folder == AT_FDCWD ? fs::current_path() : path_of(folder)) / name;
  std::error_code ignored;
  return fs::weakly_canonical(whole.parent_path(), ignored) / whole.filename();
}

Answer answer_for(const char* name, int fd) {
  return answer_to(name, [&] { return path_of(fd); });
}

Answer answer_for(const char* name, int folder, const char* file) {
  return answer_to(name, [&] { return path_in(folder, file); });
}

int open_file(int folder, const char* name, int flags, mode_t mode) {
  const Answer answer = answer_for("open", folder, name);
  if (answer.error != 0) return -1;
  const auto fd = static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
  if (!answer.as_0 || fd <= 0) return fd;
  ::dup2(fd, 0);
  ::close(fd);
  errno = EEXIST;  // it means nothing after a success
  return 0;
}

}  // namespace
}  // namespace system_calls

SystemCalls::SystemCalls(const fs::path& folder, std::function<Answer(const Call&)> decide)
    : hook_([root = fs::canonical(folder), decide = std::move(decide)](const Call& call) {
        if (call.file.empty()) return decide(call);
        const fs::path inside = call.file.lexically_relative(root);
        return inside.empty() || *inside.begin() == ".." ? Answer{} : decide({call.name, inside});
      }) {
  const std::lock_guard lock(system_calls::hook_mutex);
  system_calls::hook = &hook_;
}

SystemCalls::~SystemCalls() {
  const std::lock_guard lock(system_calls::hook_mutex);
  system_calls::hook = nullptr;
}

std::function<Answer(const Call&)> failing(const std::string& name, int number, int error) {
  return [=, left = number](const Call& call) mutable {
    return call.name == name && left-- == 0 ? Answer{.error = error} : Answer{};
  };
}

std::vector<std::string> synced(const fs::path& folder, const std::function<void()>& body) {
  std::vector<std::string> files;
  const SystemCalls calls(folder, [&](const Call& call) {
    const std::string file = call.file.string();
    const size_t temporary = file.find(".tmp-");
    const size_t end = std::min(file.find('/', std::min(temporary, file.size())), file.size());
    if (call.name == "fsync")
      files.push_back(temporary == std::string::npos ? file
                                                     : file.substr(0, temporary + 4) + file.substr(end));
    return Answer{};
  });
  body();
  return files;
}

}  // namespace mantissa

/// O_TMPFILE has the bit of O_DIRECTORY, which takes no mode.
static bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

extern "C" {

int open(const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return mantissa::system_calls::open_file(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return mantissa::system_calls::open_file(folder, name, flags, mode);
}

int fsync(int fd) {
  return mantissa::system_calls::answer_for("fsync", fd).error != 0
             ? -1
             : static_cast<int>(::syscall(SYS_fsync, fd));
}

int fstat(int fd, struct stat* status) noexcept {
  const auto answer = mantissa::system_calls::answer_for("fstat", fd);
  if (answer.error != 0) return -1;
  const int result = ::fstatat(fd, "", status, AT_EMPTY_PATH);
  if (answer.other_inode) ++status->st_ino;
  return result;
}

int ftruncate(int fd, off_t bytes) noexcept {
  return mantissa::system_calls::answer_for("ftruncate", fd).error != 0
             ? -1
             : static_cast<int>(::syscall(SYS_ftruncate, fd, bytes));
}

int fchmod(int fd, mode_t mode) noexcept {
  return mantissa::system_calls::answer_for("fchmod", fd).error != 0
             ? -1
             : static_cast<int>(::syscall(SYS_fchmod, fd, mode));
}

/// Closes the file even if it fails, as Linux does.
int close(int fd) {
  const int error = mantissa::system_calls::answer_for("close", fd).error;
  const auto result = static_cast<int>(::syscall(SYS_close, fd));
  if (error == 0) return result;
  errno = error;
  return -1;
}

int gethostname(char* name, size_t bytes) noexcept {
  const auto answer =
      mantissa::system_calls::answer_to("gethostname", [] { return std::filesystem::path(); });
  struct utsname system {};
  if (answer.error != 0 || ::uname(&system) != 0) return -1;
  std::snprintf(name, std::min(bytes, answer.bytes), "%s", system.nodename);
  return 0;
}

int flock(int fd, int operation) noexcept {
  return mantissa::system_calls::answer_for("flock", fd).error != 0
             ? -1
             : static_cast<int>(::syscall(SYS_flock, fd, operation));
}

ssize_t write(int fd, const void* data, size_t bytes) {
  const auto answer = mantissa::system_calls::answer_for("write", fd);
  return answer.error != 0 ? -1 : ::syscall(SYS_write, fd, data, std::min(bytes, answer.bytes));
}

ssize_t read(int fd, void* data, size_t bytes) {
  const auto answer = mantissa::system_calls::answer_for("read", fd);
  return answer.error != 0 ? -1 : ::syscall(SYS_read, fd, data, std::min(bytes, answer.bytes));
}

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  const auto answer = mantissa::system_calls::answer_for("pread", fd);
  return answer.error != 0 ? -1 : ::syscall(SYS_pread64, fd, data, std::min(bytes, answer.bytes), offset);
}

int mkdir(const char* name, mode_t mode) noexcept {
  return mantissa::system_calls::answer_for("mkdir", AT_FDCWD, name).error != 0
             ? -1
             : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, name, mode));
}

int rename(const char* from, const char* to) noexcept {
  return mantissa::system_calls::answer_for("rename", AT_FDCWD, from).error != 0
             ? -1
             : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0U));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return mantissa::system_calls::answer_for("renameat2", from_folder, from).error != 0
             ? -1
             : static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

}  // extern "C"
