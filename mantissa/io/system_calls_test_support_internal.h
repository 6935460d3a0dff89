#pragma once

// For tests: lets system calls of this process fail. system_calls_test_support.cpp, which must be linked, defines
// the functions, and the linker takes these instead of libc's.

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace mantissa {

/// One call of the system, as it is about to be made.
struct Call {
  std::string name;
  std::filesystem::path file;  ///< "" if it concerns none
};

/// What becomes of a call: it fails with `error`, handles at most `bytes`, opens a file as descriptor 0, or
/// tells a wrong inode number.
struct Answer {
  int error = 0;
  size_t bytes = std::numeric_limits<size_t>::max();
  bool as_0 = false;
  bool other_inode = false;
};

/// While it lives, `decide` is asked about the process's calls that concern files below `folder`, or none. Calls that
/// `decide` makes itself are asked about, too.
class SystemCalls {
 public:
  SystemCalls(const std::filesystem::path& folder, std::function<Answer(const Call&)> decide);
  ~SystemCalls();
  SystemCalls(const SystemCalls&) = delete;
  SystemCalls& operator=(const SystemCalls&) = delete;

 private:
  const std::function<Answer(const Call&)> hook_;
};

/// Returns the path of an open file.
std::filesystem::path path_of(int fd);

/// Makes the `number`-th call of `name` fail with `error`, counted from 0.
std::function<Answer(const Call&)> failing(const std::string& name, int number, int error);

/// Returns the files below `folder` that `body` syncs, in this order. A temporary name is cut to what it begins with.
std::vector<std::string> synced(const std::filesystem::path& folder, const std::function<void()>& body);

}  // namespace mantissa
