#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace mantissa {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kStateFile = "state.safetensors";
/// The file that tools/lightning_ckpt.py writes beside the weights.
inline constexpr const char* kLightningFile = "lightning.json";
/// The value of a manifest's first field, "format".
inline constexpr std::string_view kManifestFormat = "mantissa-checkpoint";

/// Whether `path` looks like a checkpoint's folder, whole or damaged: it has one of its files. This is enough to
/// list it.
bool is_checkpoint_folder(const std::filesystem::path& path);

/// Returns why `path` may be neither replaced nor removed as a checkpoint, or "" if it may. It may if it is an
/// empty folder, if it has a manifest of ours, or if its manifest is damaged and it holds only files of a
/// checkpoint.
std::string why_not_checkpoint(const std::filesystem::path& path);

/// Returns `path`, or the sibling that holds the whole checkpoint of that name if its writer was killed
/// between the two moves that replace it.
std::filesystem::path checkpoint_at(const std::filesystem::path& path);

/// The kind of sibling that holds the older checkpoint while the newer one takes its place.
inline constexpr const char* kSetAside = "old";

/// Moves the folder `fresh` to `target`; the previous folder is at `fresh` afterwards. `may_exchange`: false
/// behaves as on a file system that cannot exchange two folders.
void put_in_place(const std::filesystem::path& fresh, const std::filesystem::path& target,
                  bool may_exchange = true);

}  // namespace mantissa
