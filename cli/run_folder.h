#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/held_folder.h"

namespace mantissa::cli {

/// The folder inside a run's folder that contains the checkpoints.
inline constexpr const char* kCheckpoints = "checkpoints";
/// What transformers reads beside the weights of a model with Hugging Face's names.
inline constexpr const char* kModelConfig = "config.json";
/// The files that training writes at its end, in this order. From the first step of a resumed run until its
/// end, kResult does not exist, and kWeights contains the weights from before the resume.
inline constexpr const char* kWeights = "weights.safetensors";
inline constexpr const char* kResult = "result.json";
/// The folder inside a run's folder that contains its adapter, in PEFT's form.
inline constexpr const char* kAdapter = "adapter";
/// What the run calls the classes and columns of its data, and how many samples it has.
inline constexpr const char* kDataRecord = "data.json";
/// The changes of mode in a run that has diverged, as they happened.
inline constexpr const char* kFallbacks = "fallbacks.json";

/// The folder for a run's files. A FolderLock keeps other runs out while this object lives. Unless keep() was
/// called, the destructor removes the folder with everything that was written into it, the parent folders
/// that were made for it, and nothing else. In the folder of an earlier run, it removes only the logs that
/// this run has begun.
class RunFolder {
 public:
  /// Creates the folder `wanted`. If `wanted` is empty, creates the first free `runs/<label>-<N>`.
  /// Errors: those of check_run_folder(); c10::Error that names the folder if it cannot be made, or the
  ///         process that holds it. After an error nothing is left behind, and no other run has lost a file.
  RunFolder(const std::string& wanted, const std::string& label);
  /// Uses the folder of an earlier run, to resume that run. Writes only the lock.
  /// Errors: those of FolderLock.
  explicit RunFolder(const std::filesystem::path& existing);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  std::filesystem::path file(const char* name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// Lists the checkpoints, newest first. The list is empty if there is no folder of checkpoints.
  std::vector<CheckpointEntry> checkpoints() const;
  /// From now on, the destructor removes nothing.
  void keep() { keep_ = true; }
  /// Returns true if the folder was removed, moved or replaced.
  bool is_lost() const { return held_->is_lost(); }
  /// Replaces a lost folder by `other`. If `other` is empty, replaces it by the folder that
  /// HeldFolder::replace() makes.
  /// Errors: those of HeldFolder and FolderLock.
  void replace(const std::filesystem::path& other);

 private:
  void make(const std::filesystem::path& folder);

  std::filesystem::path path_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<HeldFolder> held_;
  std::vector<std::filesystem::path> made_;
  std::set<std::filesystem::path> existing_entries_;  ///< files from before this object
  bool keep_ = false, is_fresh_ = true;
};

/// Checks, without leaving anything behind, whether RunFolder could use `wanted`.
/// Errors: c10::Error that names the folder if it cannot be made or written, or already holds a run.
void check_run_folder(const std::string& wanted);

/// Returns the reason why no file can be made in `folder`, or "" if one can. Permissions alone do not show
/// this: a file system may be full or read-only.
std::string cannot_write_in(const std::filesystem::path& folder);

/// Returns whether a run writes a file or folder of this name into its folder.
bool is_file_of_run(const std::string& name);

}  // namespace mantissa::cli
