#pragma once

#include <filesystem>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace mantissa {

/// A folder that a long run writes into. Somebody may remove or move it meanwhile; the folder is held open,
/// so that another folder of the same name is not mistaken for it.
///
/// Threads: one at a time.
/// Errors:  c10::Error naming the folder, the system's reason and the cure if it cannot be opened.
/// Example: held_folder_test.cpp, HeldFolderTest.IsMadeAgainWhereItWas
class HeldFolder {
 public:
  /// `folder` must exist.
  explicit HeldFolder(const std::filesystem::path& folder);
  ~HeldFolder();
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;

  /// The path is absolute.
  const std::filesystem::path& path() const { return path_; }
  /// Whether path() no longer leads to this folder, because it was removed or moved. A failing disk does not
  /// count.
  bool is_lost() const;

  /// Makes and holds another folder in place of this one, which is lost. It has the same path if nothing has
  /// that name now; otherwise the first replaced folder of the path gets the name `NAME-rescued-N`. If none
  /// can be made there, `NAME-rescued-N` is made in the system's folder for temporary files. Returns the new
  /// path().
  /// Errors: c10::Error naming the reason if no folder can be made. Nothing has changed then.
  const std::filesystem::path& replace();

 private:
  using Id = std::pair<dev_t, ino_t>;
  void hold(std::filesystem::path folder);

  std::filesystem::path path_;
  int fd_ = -1;
  bool has_stable_inodes_ = false;  ///< false if the file system's inode numbers do not last
  std::vector<Id> ids_;             ///< of each folder on the path
};

}  // namespace mantissa
