#include "mantissa/io/checkpoint_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <mutex>
#include <string_view>
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

/// Whether `path` is a checkpoint under its own name, or one set aside while its successor was moved into
/// place.
bool is_checkpoint(const fs::path& path) {
  std::error_code error;
  const std::string name = path.filename().string();
  if (!name.starts_with(".")) return is_checkpoint_folder(path);
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

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&seconds, &utc));
  return text.data();
}

/// Whether `name` still refers to `file`: the previous holder may have removed it after it was opened.
bool refers_to(const fs::path& name, const FileDescriptor& file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file.get(), &opened) == 0 && ::lstat(name.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/// The beginning of every lock's text.
constexpr std::string_view kHolder = "process ";

/// Returns the text on one line, whoever has written it.
std::string text_of(const FileDescriptor& file) {
  std::array<char, 400> text{};
  const ssize_t read = ::pread(file.get(), text.data(), text.size(), 0);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return {text.data(), read > 0 ? static_cast<size_t>(read) : 0};
}

/// Opens or makes the file of a lock. Any other user of the folder may have put something else under its
/// name, such as a pipe or a link to a file of ours, which must not be written.
/// Errors: c10::Error with the cure if the file was not made by a FolderLock.
FileDescriptor open_lock(const fs::path& file, const fs::path& shown) {
  FileDescriptor opened(::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (opened.get() < 0) fail_to_write(shown, "opening it", errno);
  struct stat found {};
  if (::fstat(opened.get(), &found) != 0) fail_to_write(shown, "reading its status", errno);
  const std::string text = S_ISREG(found.st_mode) ? text_of(opened) : "";
  const size_t same = std::min(text.size(), kHolder.size());
  TORCH_CHECK(S_ISREG(found.st_mode) && text.compare(0, same, kHolder, 0, same) == 0,
              "cannot lock the folder with '", shown.string(), "': there is something else under that name (",
              S_ISREG(found.st_mode) ? "its text is not that of a lock" : "it is not a regular file",
              "); move it away, or choose another folder");
  return opened;
}

std::string holder() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return std::string(kHolder) + std::to_string(getpid()) + " on " + host.data() + " since " + now();
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
                    " of them: ", join_names(newest.warnings), "; start a new run in another folder");
}

bool remove_checkpoint(const fs::path& path) {
  const fs::path named = path.has_filename() ? path : path.parent_path();
  std::error_code error;
  const fs::path target = checkpoint_at(named);
  if (!fs::exists(fs::symlink_status(target, error))) return false;
  const std::string other =
      fs::is_symlink(target, error) ? "it is a symbolic link" : why_not_checkpoint(target);
  TORCH_CHECK_VALUE(other.empty(), "cannot remove checkpoint '", path.string(),
                    "': it is not a checkpoint's folder (", other, "); give the path of one");
  const FileDescriptor parent = open_folder_of(target, named);
  // Locked, so that remove_leftovers() does not take it for a killed process's folder.
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
      if (fs::remove_all(path, error) == 0) continue;  // its owner has just removed it
    } else {
      continue;
    }
    if (!error) gone.push_back(name);
  }
  return gone;
}

void remove_leftovers(const fs::path& folder, const std::set<std::string>& names) {
  remove_abandoned_files(folder, names);
}

FolderLock::FolderLock(const fs::path& folder) : file_(fs::absolute(folder) / ".lock") {
  FileDescriptor opened;
  int tries = 0;  // on a file system without inode numbers the two would never be the same
  do {
    opened = open_lock(file_, folder / ".lock");
    if (!try_lock(opened)) {
      const std::string who = text_of(opened);
      const std::string by = who.empty() ? "another process" : who;
      TORCH_CHECK(!by.starts_with(std::string(kHolder) + std::to_string(::getpid()) + " on "), "the folder '",
                  folder.string(), "' is in use by this process; give each of its writers one of its own");
      TORCH_CHECK(false, "the folder '", folder.string(), "' is in use by ", by,
                  "; wait for it, end it, or choose another folder");
    }
  } while (!refers_to(file_, opened) && ++tries < 100);
  // The holder's name only serves a message; if it cannot be written, for example on a full disk, that is no
  // error.
  const std::string me = holder();
  [[maybe_unused]] const ssize_t told =
      ::ftruncate(opened.get(), 0) == 0 ? ::pwrite(opened.get(), me.data(), me.size(), 0) : -1;
  fd_ = opened.release();
}

FolderLock::~FolderLock() {
  const FileDescriptor held(fd_);
  // Remove the file while it is locked, and never the file of somebody who has put another folder in its
  // place.
  if (refers_to(file_, held)) ::unlink(file_.c_str());
}

}  // namespace mantissa
