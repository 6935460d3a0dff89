#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string_view>

namespace mantissa {

/// The file or folder itself behind any symbolic links, also one that does not exist yet; rename() would
/// replace the link.
/// Errors: c10::Error naming a link that cannot be followed, or leads in a circle.
std::filesystem::path behind_links(std::filesystem::path path);

/// What becomes of a symbolic link under the name of a file that is written.
enum class Links {
  kFollow,   ///< the file that it leads to is replaced: for names that the user gives
  kReplace,  ///< the link itself is: for names of our own in a folder in which others may have put the link
};

/// Writes a file that readers see either whole or not at all, whatever kills the program: `write` fills a
/// file of a temporary name (`.NAME.tmp-PID-N`) in the same folder, which is synced to the disk and renamed
/// over `path`.
///
/// The stream throws as soon as a write fails, so `write` need not look at its state; large blocks go
/// straight to the file, without a copy. An existing file keeps its permissions.
/// Threads: any number of writers, also of one path: the last to finish wins.
/// Errors: c10::Error naming the file, the system's reason and the cure if the folder is missing or not
///         writable, `path` is no regular file, the disk is full; whatever `write` throws. In all these cases
///         the temporary file is removed and the file that was there before is untouched.
void write_file_atomically(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write,
                           Links links = Links::kFollow);
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           Links links = Links::kFollow);

}  // namespace mantissa
