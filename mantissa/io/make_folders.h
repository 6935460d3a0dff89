#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace mantissa {

/// Makes `folder` and those above it that are missing, and adds to `made`, outermost first, what it made: so
/// that who fails later can take it away again, and nothing else. Returns the reason where it had to stop.
std::error_code make_folders(const std::filesystem::path& folder, std::vector<std::filesystem::path>& made);

}  // namespace mantissa
