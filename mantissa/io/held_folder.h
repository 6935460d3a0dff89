#pragma once

#include <filesystem>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace mantissa {

/// A folder that a long run writes into, which somebody may remove or move meanwhile: it stays open, so that
/// another folder of the same name is not taken for it.
///
/// Threads: one at a time.
/// Errors:  c10::Error naming the folder, the system's reason and the cure if it cannot be opened.
/// Example: held_folder_test.cpp, HeldFolder.IsMadeAgainWhereItWas
class HeldFolder {
 public:
  /// `folder` must be there.
  explicit HeldFolder(const std::filesystem::path& folder);
  ~HeldFolder();
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;

  /// Absolute.
  const std::filesystem::path& path() const { return path_; }
  /// Whether path() leads to this folder no more: it was removed or moved. A disk that fails says nothing.
  bool is_lost() const;

  /// Makes another folder for what was to be written into this one, which is lost, and holds that: under the
  /// same path if nothing has that name now, else where the first replaced folder of the path gets the name
  /// `NAME-rescued-N`. If none can be made there, `NAME-rescued-N` is made in the system's folder for
  /// temporary files. Returns the new path().
  /// Errors: c10::Error naming the reason if there is no place at all; nothing has changed then.
  const std::filesystem::path& replace();

 private:
  using Id = std::pair<dev_t, ino_t>;
  void hold(std::filesystem::path folder);

  std::filesystem::path path_;
  int fd_ = -1;
  bool is_numbered_ = false;  ///< false where the file system's numbers of files do not last
  std::vector<Id> ids_;       ///< of each folder on the path
};

}  // namespace mantissa
