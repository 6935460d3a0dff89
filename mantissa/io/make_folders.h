#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace mantissa {

/// Makes `folder` and its missing parents, and adds the folders it made to `made`, outermost first, so that a
/// caller who fails later can remove exactly these. Returns the reason if it had to stop.
std::error_code make_folders(const std::filesystem::path& folder, std::vector<std::filesystem::path>& made);

}  // namespace mantissa
