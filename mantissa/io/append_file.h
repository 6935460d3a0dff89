#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace mantissa {

/// A file that grows at its end: what append() was given is in the system's hands when it returns, so that a
/// killed program (`kill -9`) loses none of it; what sync() has seen survives a loss of power, too.
///
/// While it lives, no other AppendFile, of any process, may write the same file.
/// Threads: one at a time.
/// Errors:  c10::Error naming the file, the system's reason and the cure if it cannot be opened or written,
///          if another run has it open, or if it was removed meanwhile. A piece is in the file whole or,
///          after an error, not at all; only a kill in the middle of append() can leave a cut one. A symbolic
///          link is refused. A new file that nothing could be written into is removed again.
class AppendFile {
 public:
  /// kCreate: the file must not be there yet. kContinue: creates it or goes on after its last whole line:
  /// what a killed program has left behind that, or of edit_lines(), is dropped.
  enum class Mode { kCreate, kContinue };

  AppendFile(std::filesystem::path path, Mode mode);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view piece);
  void sync();

  /// Rewrites the file through `edit`, which is given every line, without its end, to change it or to drop it
  /// by returning false. Readers see the old file or the new one: see write_file_atomically().
  /// Memory: one line.
  /// Errors: those of write_file_atomically() and of `edit`; the file is then as it was.
  void edit_lines(const std::function<bool(std::string& line)>& edit);

  const std::filesystem::path& path() const { return path_; }
  /// Units: bytes.
  uint64_t size() const { return size_; }

 private:
  explicit AppendFile(std::filesystem::path path);  // opens nothing
  bool open(int flags, bool may_exist = false);
  void check_not_removed() const;
  void drop_cut_line();

  std::filesystem::path path_;
  int fd_ = -1;
  bool made_ = false;
  uint64_t size_ = 0;
};

}  // namespace mantissa
