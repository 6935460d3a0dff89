#pragma once

#include <filesystem>

namespace mantissa::cli {

/// Returns `path` if it is a checkpoint, or the newest checkpoint in it if it is a folder of checkpoints.
/// Returns an empty path for anything else that may be a model, such as a safetensors file.
/// Errors: c10::ValueError for a folder that contains neither a checkpoint nor a model, and for a folder that
///         cannot be read.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace mantissa::cli
