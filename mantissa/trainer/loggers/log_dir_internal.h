#pragma once

#include <filesystem>
#include <system_error>

#include <c10/util/Exception.h>

namespace mantissa {

/// Creates `folder` and its parents if they are missing. Returns it as an absolute path, because the program
/// may change its working directory while it logs.
/// Errors: c10::Error with the folder and the system's reason.
inline std::filesystem::path make_log_dir(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, "cannot create the folder '", folder.string(), "' for logs: ", error.message(),
              "; choose one that you may write to");
  return std::filesystem::absolute(folder);
}

}  // namespace mantissa
