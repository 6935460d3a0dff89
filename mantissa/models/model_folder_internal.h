#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "mantissa/models/causal_model.h"

namespace mantissa {

/// The config.json of a model: its text, and its name in errors.
struct ConfigFile {
  std::string text, name;
};

/// Reads a config.json: `path` is the file, or a folder that has it.
/// Errors: c10::Error if the file cannot be read, or has more than 1 MiB.
ConfigFile read_config_file(const std::filesystem::path& path);

/// Writes the files that transformers' from_pretrained() reads; `who` begins errors.
/// Errors: c10::ValueError for packed weights and if the folder already has one of these files; those of
///         write_safetensors_files(). Nothing is left then.
void save_model_folder(const std::string& who, const CausalModel& model, const std::filesystem::path& folder,
                       uint64_t max_shard_bytes);

}  // namespace mantissa
