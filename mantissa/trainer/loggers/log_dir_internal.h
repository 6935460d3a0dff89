#pragma once

#include <filesystem>
#include <system_error>

#include <c10/util/Exception.h>

namespace mantissa {

/// `folder`, created with those above it if it is not there; as an absolute path, for the program may change
/// its own folder while it logs.
/// Errors: c10::Error naming it and the system's reason.
inline std::filesystem::path make_log_dir(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, "cannot create the folder '", folder.string(), "' for logs: ", error.message(),
              "; choose one that you may write to");
  return std::filesystem::absolute(folder);
}

}  // namespace mantissa
