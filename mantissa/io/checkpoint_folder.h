#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mantissa/io/checkpoint.h"

namespace mantissa {

/// An entry in a folder of checkpoints.
struct CheckpointEntry {
  std::filesystem::path path;
  int64_t step = 0;
  int64_t written_unix_ms = 0;
  /// Why the manifest cannot be read, which leaves the step unknown; "" if it can.
  std::string problem = {};
};

/// Lists the checkpoints in `folder`, newest first: by the number of steps, then by the time of writing.
/// Those whose manifest cannot be read come last. Only load_checkpoint() finds other damage.
/// Errors: c10::ValueError if `folder` cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);

struct NewestCheckpoint {
  std::filesystem::path path;
  Checkpoint checkpoint;
  /// The damage of each checkpoint that is newer, or may be; report these to the user.
  std::vector<std::string> warnings;
};

/// Loads the newest undamaged checkpoint in `folder`; returns nothing if there are no checkpoints.
/// Errors: c10::ValueError naming each checkpoint and its damage if all are damaged; those of
///         list_checkpoints().
std::optional<NewestCheckpoint> load_newest(const std::filesystem::path& folder);

/// Removes a checkpoint, whole or damaged. If the program is killed, either the whole checkpoint remains
/// under its name or nothing. Returns whether there was one.
/// Errors: c10::ValueError if `path` is something else than a checkpoint's folder; c10::Error naming the
///         system's reason and the cure if it cannot be removed.
bool remove_checkpoint(const std::filesystem::path& path);

/// Cleans `folder` up after killed writers: removes temporary files and folders (`.NAME.tmp-PID-N`) of
/// write_file_atomically(), save_checkpoint() and remove_checkpoint(), and restores a checkpoint that was set
/// aside. Files that a living writer holds are left alone. Returns the names that are gone.
/// Errors: c10::ValueError if `folder` cannot be read. Files that cannot be removed stay.
std::vector<std::string> remove_leftovers(const std::filesystem::path& folder);

/// For a folder that also holds other things: removes only this user's temporary files that killed processes
/// have left of files with these names. Files that cannot be read or removed stay.
void remove_leftovers(const std::filesystem::path& folder, const std::set<std::string>& names);

/// Reserves a folder for one run: while it lives, a second lock on the same folder throws. The system
/// releases the lock when the process ends, however it ends. The file `.lock`, which names the holder, is
/// removed with the lock, unless the process is killed.
///
/// Threads: any.
/// Errors:  c10::Error naming the holder of the folder (process, machine, since when) and the cure;
///          c10::Error if the file cannot be made. On a file system without locks there is neither a lock nor
///          an error.
/// Example: checkpoint_folder_test.cpp, FolderLockTest.TheErrorNamesTheHolder
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::filesystem::path file_;
  int fd_ = -1;
};

}  // namespace mantissa
