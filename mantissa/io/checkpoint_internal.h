#pragma once

#include <array>
#include <filesystem>

namespace mantissa {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kWeightsFile = "weights.safetensors";
inline constexpr const char* kStateFile = "state.safetensors";

/// Whether a folder is a checkpoint's, whole or damaged: has one of its files, or nothing.
bool is_checkpoint_folder(const std::filesystem::path& path);

/// `path`, or the sibling under which a checkpoint of that name stands whole if its writer was killed between
/// the two moves that replace it.
std::filesystem::path checkpoint_at(const std::filesystem::path& path);

/// Of siblings that hold the older checkpoint while the newer one takes its place.
inline constexpr const char* kSetAside = "old";

/// Moves the folder `fresh` to `target`. What was there is at `fresh` afterwards.
/// `may_exchange`: false as on a file system that cannot exchange two folders.
void put_in_place(const std::filesystem::path& fresh, const std::filesystem::path& target,
                  bool may_exchange = true);

}  // namespace mantissa
