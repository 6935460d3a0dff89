#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mantissa/io/checkpoint.h"

namespace mantissa {

/// A checkpoint in a folder of them.
struct CheckpointEntry {
  std::filesystem::path path;
  int64_t step = 0;
  int64_t written_unix_ms = 0;
  /// Why its manifest cannot be read, so that its step is unknown; "" if it can.
  std::string problem = {};
};

/// The checkpoints that lie in `folder`, newest first: of the most steps, of equal ones the last written.
/// Those whose manifest cannot be read come last; only load_checkpoint() finds other damage.
/// Errors: c10::ValueError if `folder` cannot be read.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);

struct NewestCheckpoint {
  std::filesystem::path path;
  Checkpoint checkpoint;
  /// What is wrong with each checkpoint that is newer, or may be; a user should be told.
  std::vector<std::string> warnings;
};

/// The newest checkpoint in `folder` that is whole; nothing if there are none at all.
/// Errors: c10::ValueError naming each checkpoint and its damage if all are damaged; those of
///         list_checkpoints().
std::optional<NewestCheckpoint> load_newest(const std::filesystem::path& folder);

/// Removes a checkpoint, whole or damaged; whatever kills the program, what remains under its name is the
/// whole of it or nothing. Returns whether there was one.
/// Errors: c10::ValueError if `path` is something else than a checkpoint's folder; c10::Error naming the
///         system's reason and the cure if it cannot be removed.
bool remove_checkpoint(const std::filesystem::path& path);

/// Removes from `folder` what killed writers have left: temporary files and folders (`.NAME.tmp-PID-N`) of
/// write_file_atomically(), save_checkpoint() and remove_checkpoint(), and brings a checkpoint back that was
/// set aside. What a living writer holds is left alone. Returns the names that are gone.
/// Errors: c10::ValueError if `folder` cannot be read; what cannot be removed stays.
std::vector<std::string> remove_leftovers(const std::filesystem::path& folder);

/// In a folder that holds other things, too: only the temporary files, of this user, that killed processes
/// have left of files of these names. What cannot be read or removed stays.
void remove_leftovers(const std::filesystem::path& folder, const std::set<std::string>& names);

/// A folder that one run has to itself: as long as this lives, a second one on the same folder throws. The
/// system drops the lock when its process ends, however it ends. The file `.lock`, which says who has it,
/// goes with the lock, unless the process is killed.
///
/// Threads: any.
/// Errors:  c10::Error naming who holds the folder (process, machine, since when) and the cure; c10::Error if
///          the file cannot be made. A file system without locks gives none, and no error.
/// Example: checkpoint_folder_test.cpp, FolderLock.TheSecondRunIsToldWhoHasTheFolder
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
