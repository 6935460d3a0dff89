#include "mantissa/io/checkpoint_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <mutex>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint_internal.h"
#include "mantissa/io/files_internal.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    paths.push_back(entries->path());
  }
  TORCH_CHECK_VALUE(!error, "cannot read the folder '", folder.string(), "': ", error.message(),
                    "; give a folder of checkpoints that you may read");
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Under its own name, or set aside while its successor was being put in its place.
bool is_checkpoint(const fs::path& path) {
  std::error_code error;
  const std::string name = path.filename().string();
  if (!name.starts_with(".")) return !fs::is_empty(path, error) && is_checkpoint_folder(path);
  const auto parts = parse_sibling(name);
  return parts && parts->kind == kSetAside && !fs::exists(path.parent_path() / parts->name, error);
}

CheckpointEntry entry_of(const fs::path& path) {
  CheckpointEntry entry{path};
  try {
    const Manifest manifest = read_manifest(path);
    entry.step = manifest.step;
    entry.written_unix_ms = manifest.written_unix_ms;
  } catch (const c10::Error& error) {
    entry.problem = error.what_without_backtrace();
  }
  return entry;
}

bool is_dead(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

/// Whether whoever made a temporary file or folder is gone. Our own id may be that of an earlier process, as
/// where each container's first process is number 1: then the lock alone tells.
bool is_abandoned(const fs::path& path, pid_t writer) {
  if (writer != getpid() && !is_dead(writer)) return false;
  const FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return opened.get() >= 0 && try_lock(opened);
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&seconds, &utc));
  return text.data();
}

/// Whether `file` is what `name` stands for: the holder before may have removed it since it was opened.
bool is_still(const fs::path& name, const FileDescriptor& file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file.get(), &opened) == 0 && ::stat(name.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::string holder() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "process " + std::to_string(getpid()) + " on " + host.data() + " since " + now();
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointEntry> found;
  for (const fs::path& path : entries_of(folder)) {
    if (is_checkpoint(path)) found.push_back(entry_of(path));
  }
  const auto key = [](const CheckpointEntry& entry) {
    return std::make_tuple(entry.problem.empty(), entry.step, entry.written_unix_ms);
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const CheckpointEntry& a, const CheckpointEntry& b) { return key(a) > key(b); });
  return found;
}

std::optional<NewestCheckpoint> load_newest(const fs::path& folder) {
  NewestCheckpoint newest;
  const std::vector<CheckpointEntry> entries = list_checkpoints(folder);
  if (entries.empty()) return std::nullopt;
  for (const CheckpointEntry& entry : entries) {
    if (!entry.problem.empty()) newest.warnings.push_back(entry.problem);
  }
  for (const CheckpointEntry& entry : entries) {
    if (!entry.problem.empty()) continue;
    try {
      newest.checkpoint = load_checkpoint(entry.path);
      newest.path = entry.path;
      return newest;
    } catch (const c10::Error& error) {
      newest.warnings.emplace_back(error.what_without_backtrace());
    }
  }
  TORCH_CHECK_VALUE(false, "every checkpoint in '", folder.string(), "' is damaged, ", entries.size(),
                    " of them: ", join_names(newest.warnings), "; start anew in another folder");
}

bool remove_checkpoint(const fs::path& path) {
  const fs::path named = path.has_filename() ? path : path.parent_path();
  std::error_code error;
  const fs::path target = checkpoint_at(named);
  if (!fs::exists(fs::symlink_status(target, error))) return false;
  const std::string other =
      fs::is_symlink(target, error) ? "it is a symbolic link" : why_no_checkpoint(target);
  TORCH_CHECK_VALUE(other.empty(), "cannot remove checkpoint '", path.string(),
                    "': it is no folder of a checkpoint (", other, "); give one's own name");
  const FileDescriptor parent = open_folder_of(target, named);
  // Held, so that remove_leftovers() does not take it for a killed process's.
  const FileDescriptor held(::open(target.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  try_lock(held);
  const fs::path going = sibling(named, kTemporary);
  TORCH_CHECK(::rename(target.c_str(), going.c_str()) == 0, "cannot remove checkpoint '", path.string(),
              "': ", reason(errno), "; ", cure(errno));
  sync_folder(parent, named);
  fs::remove_all(going, error);
  TORCH_CHECK(!error, "cannot remove checkpoint '", path.string(), "', which is now '", going.string(),
              "': ", error.message(), "; remove that by hand");
  return true;
}

std::vector<std::string> remove_leftovers(const fs::path& folder) {
  std::vector<std::string> gone;
  const std::lock_guard lock(temporaries_mutex());
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    const auto parts = parse_sibling(name);
    if (!parts || !is_abandoned(path, parts->pid)) continue;
    std::error_code error;
    const fs::path original = folder / parts->name;
    if (parts->kind == kSetAside && !fs::exists(original, error)) {
      fs::rename(path, original, error);
    } else if (parts->kind == kTemporary || parts->kind == kSetAside) {
      fs::remove_all(path, error);
    } else {
      continue;
    }
    if (!error) gone.push_back(name);
  }
  return gone;
}

FolderLock::FolderLock(const fs::path& folder) : file_(fs::absolute(folder) / ".lock") {
  FileDescriptor opened;
  int tries = 0;  // on a file system that does not number files they are never the same
  do {
    opened = FileDescriptor(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (opened.get() < 0) fail_to_write(folder / ".lock", "creating it", errno);
    if (!try_lock(opened)) {
      std::array<char, 400> who{};
      const ssize_t read = ::pread(opened.get(), who.data(), who.size() - 1, 0);
      const std::string by = read > 0 ? who.data() : "another process";
      TORCH_CHECK(!by.starts_with("process " + std::to_string(::getpid()) + " on "), "the folder '",
                  folder.string(), "' is in use by this process; give each of its writers one of its own");
      TORCH_CHECK(false, "the folder '", folder.string(), "' is in use by ", by,
                  "; wait for it, end it, or choose another folder");
    }
  } while (!is_still(file_, opened) && ++tries < 100);
  // Who holds it is for a message only: that it cannot be written, on a full disk, is no reason to stop.
  const std::string me = holder();
  [[maybe_unused]] const bool told =
      ::ftruncate(opened.get(), 0) == 0 && ::pwrite(opened.get(), me.data(), me.size(), 0) >= 0;
  fd_ = opened.release();
}

FolderLock::~FolderLock() {
  const FileDescriptor held(fd_);
  // While it is held; and never that of somebody who has put another folder in this one's place.
  if (is_still(file_, held)) ::unlink(file_.c_str());
}

}  // namespace mantissa
