#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/held_folder.h"

namespace mantissa::cli {

/// Where in a run's folder its checkpoints are.
inline constexpr const char* kCheckpoints = "checkpoints";
/// What training leaves there at its end, in this order. While it goes on in the folder of an earlier one,
/// there is no kResult, and kWeights are the earlier one's.
inline constexpr const char* kWeights = "weights.safetensors";
inline constexpr const char* kResult = "result.json";

/// The folder for a run's files, which no other run may use while this lives: FolderLock. Unless keep() was
/// called it is removed again at the end of the scope, with all that was written into it and the folders that
/// were made for it, and nothing else. Of one that held a run before, the logs go that were begun.
class RunFolder {
 public:
  /// Creates `wanted`, or if that is empty the first free `runs/<label>-<N>`.
  /// Errors: those of check_run_folder(); c10::Error naming the folder if it cannot be made, or who holds it.
  ///         Nothing is then left behind, and nothing of another run removed.
  RunFolder(const std::string& wanted, const std::string& label);
  /// Goes on in a folder that holds a run; writes nothing but the lock.
  /// Errors: those of FolderLock.
  explicit RunFolder(const std::filesystem::path& existing);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::filesystem::path file(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// Newest first; none where there is no folder for them.
  std::vector<CheckpointEntry> checkpoints() const;
  void keep() { keep_ = true; }
  /// Whether somebody has removed, moved or replaced it.
  bool is_lost() const { return held_->is_lost(); }
  /// Continues in another folder instead of one that is lost: in `other`, or if that is empty in the one that
  /// HeldFolder::replace() makes.
  /// Errors: those of HeldFolder and FolderLock.
  void replace(const std::filesystem::path& other);

 private:
  void make(const std::filesystem::path& folder);

  std::filesystem::path path_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<HeldFolder> held_;
  std::vector<std::filesystem::path> made_;
  std::set<std::filesystem::path> others_;  ///< lay there before
  bool keep_ = false, is_fresh_ = true;
};

/// Finds out, without leaving anything behind, whether RunFolder could have `wanted`.
/// Errors: c10::Error naming the folder if it cannot be made or written, or already holds a run.
void check_run_folder(const std::string& wanted);

/// Finds out before a long run whether `file` can be written at its end, by writing another one beside it. A
/// symbolic link is followed. `run`: the folder that a run is about to make, or empty.
/// Errors: c10::Error naming the file, the reason and the cure; UsageError if it is one of a run's own files.
void check_writable(const std::filesystem::path& file, const std::filesystem::path& run = {});

}  // namespace mantissa::cli
