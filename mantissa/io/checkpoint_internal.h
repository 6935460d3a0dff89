#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace mantissa {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kStateFile = "state.safetensors";
/// What tools/lightning_ckpt.py puts beside weights.
inline constexpr const char* kLightningFile = "lightning.json";
/// A manifest's field "format", its first.
inline constexpr std::string_view kManifestFormat = "mantissa-checkpoint";

/// Whether a folder looks like a checkpoint's, whole or damaged: has one of its files, or nothing. Enough to
/// list it.
bool is_checkpoint_folder(const std::filesystem::path& path);

/// Why `path` may be neither replaced nor removed as a checkpoint; "" if it may: it is an empty folder, or
/// has a manifest of ours, or, should that be damaged, files of a checkpoint and nothing else.
std::string why_no_checkpoint(const std::filesystem::path& path);

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
