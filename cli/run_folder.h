#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/held_folder.h"

namespace mantissa::cli {

/// The folder of the checkpoints inside a run's folder.
inline constexpr const char* kCheckpoints = "checkpoints";
/// The files that training writes at its end, in this order. While training continues in the folder of an
/// earlier run, there is no kResult, and kWeights is that of the earlier run.
inline constexpr const char* kWeights = "weights.safetensors";
inline constexpr const char* kResult = "result.json";

/// The folder for a run's files. No other run may use it while this object lives: FolderLock. Unless keep()
/// was called, the destructor removes the folder with everything that was written into it, the parent folders
/// that were made for it, and nothing else. In a folder that already held a run, it removes the logs that
/// were begun.
class RunFolder {
 public:
  /// Creates `wanted`, or the first free `runs/<label>-<N>` if that is empty.
  /// Errors: those of check_run_folder(); c10::Error that names the folder if it cannot be made, or the
  ///         process that holds it. Nothing is left behind then, and nothing of another run is removed.
  RunFolder(const std::string& wanted, const std::string& label);
  /// Continues in a folder that holds a run; writes only the lock.
  /// Errors: those of FolderLock.
  explicit RunFolder(const std::filesystem::path& existing);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::filesystem::path file(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// The newest comes first. The list is empty if there is no folder of checkpoints.
  std::vector<CheckpointEntry> checkpoints() const;
  void keep() { keep_ = true; }
  /// True if the folder was removed, moved or replaced.
  bool is_lost() const { return held_->is_lost(); }
  /// Continues in another folder if this one is lost: in `other`, or if that is empty in the folder that
  /// HeldFolder::replace() makes.
  /// Errors: those of HeldFolder and FolderLock.
  void replace(const std::filesystem::path& other);

 private:
  void make(const std::filesystem::path& folder);

  std::filesystem::path path_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<HeldFolder> held_;
  std::vector<std::filesystem::path> made_;
  std::set<std::filesystem::path> existing_entries_;  ///< files that were there before
  bool keep_ = false, is_fresh_ = true;
};

/// Checks, without leaving anything behind, whether RunFolder could use `wanted`.
/// Errors: c10::Error that names the folder if it cannot be made or written, or already holds a run.
void check_run_folder(const std::string& wanted);

/// Checks before a long run whether `file` can be written at its end, by writing another file beside it. A
/// symbolic link is followed. `run` is the folder that the run is about to make, or empty.
/// Errors: c10::Error that names the file, the reason and the remedy; UsageError if it is one of a run's own
///         files.
void check_writable(const std::filesystem::path& file, const std::filesystem::path& run = {});

}  // namespace mantissa::cli
