#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string_view>

namespace mantissa {

/// Returns the file or folder behind any symbolic links, even if it does not exist yet; rename() would
/// replace the link itself.
/// Errors: c10::Error naming a link that cannot be followed or leads in a circle.
std::filesystem::path resolve_links(std::filesystem::path path);

/// How a write treats a symbolic link under the file's name.
enum class Links {
  kFollow,   ///< the file that it leads to is replaced: for names that the user gives
  kReplace,  ///< the link itself is replaced: for our own names in a folder where others may have put the link
};

/// Writes a file that readers see either completely or not at all, even if the program is killed. `write`
/// fills a file with a temporary name (`.NAME.tmp-PID-N`) in the same folder, which is synced to the disk and
/// renamed to `path`.
///
/// The stream throws as soon as a write fails, so `write` need not check its state. Large blocks go straight
/// to the file, without a copy. An existing file keeps its permissions.
/// Threads: any number of writers, also of one path: the last to finish wins.
/// Errors: c10::Error naming the file, the system's reason and the cure if the folder is missing or not
///         writable, if `path` is no regular file, or if the disk is full; whatever `write` throws. In all
///         these cases the temporary file is removed and the previous file is untouched.
void write_file_atomically(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write,
                           Links links = Links::kFollow);
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           Links links = Links::kFollow);

}  // namespace mantissa
