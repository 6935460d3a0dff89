#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace mantissa {

/// A file that data is appended to. When append() returns, the system has the data, so a killed program
/// (`kill -9`) loses none of it. Data that sync() has written also survives a loss of power.
///
/// While an instance lives, it locks the file: another AppendFile, in any process, fails to open it. On a
/// file system without locks it does not fail.
/// Threads: one at a time.
/// Errors:  c10::Error naming the file, the system's reason and the cure if it cannot be opened or written,
///          if another run has it open, or if it was removed meanwhile. After an error, the file is cut
///          back to its previous length; only a program killed inside append() leaves a part of a piece. A
///          symbolic link is refused. A new file that stays empty is removed again.
class AppendFile {
 public:
  /// kCreate: the file must not exist yet. kContinue: creates the file, or continues after its last complete
  /// line and drops the rest. Both remove what a program killed inside edit_lines() has left.
  enum class Mode { kCreate, kContinue };

  AppendFile(std::filesystem::path path, Mode mode);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view piece);
  void sync();

  /// Rewrites the file through `edit`, which gets every line without its line break. It may change the line,
  /// or drop it by returning false. Readers see the old file or the new one (see write_file_atomically()).
  /// Memory: one line.
  /// Errors: those of write_file_atomically() and of `edit`; the file is then unchanged.
  void edit_lines(const std::function<bool(std::string& line)>& edit);

  const std::filesystem::path& path() const { return path_; }
  /// Units: bytes.
  uint64_t size() const { return size_; }

 private:
  explicit AppendFile(std::filesystem::path path);  // does not open the file
  bool open(int flags, bool may_exist = false);
  void check_not_removed() const;
  void drop_cut_line();

  std::filesystem::path path_;
  int fd_ = -1;
  bool made_ = false;
  uint64_t size_ = 0;
};

}  // namespace mantissa
