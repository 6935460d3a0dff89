#pragma once

#include <filesystem>

namespace mantissa::cli {

/// The checkpoint that `path` is, or of a folder of checkpoints the newest; empty if `path` should be a
/// safetensors model.
/// Errors: c10::ValueError for a folder that holds neither, and for one that cannot be read.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace mantissa::cli
