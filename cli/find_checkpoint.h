#pragma once

#include <filesystem>

namespace mantissa::cli {

/// Returns `path` if it is a checkpoint, or the newest one of a folder of checkpoints; empty if `path` should
/// be a safetensors model.
/// Errors: c10::ValueError for a folder that holds neither, and for one that cannot be read.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace mantissa::cli
