#pragma once

#include <cstdint>
#include <filesystem>

#include "mantissa/models/gpt2.h"

namespace mantissa {

/// Reads the config.json of a GPT-2: `path` is the file, or a folder that has it.
/// Errors: those of parse_gpt2_config(); c10::Error if the file cannot be read, or has more than 1 MiB.
Gpt2Options load_gpt2_config(const std::filesystem::path& path);

/// Returns the GPT-2 of a folder as transformers' save_pretrained() writes it: config.json, and model.safetensors or
/// shards with an index. Names may lack the prefix "transformer.", as in GPT-2's first files.
///
/// Numerics: the weights are converted to the default dtype.
/// Memory:   one tensor beside the model.
/// Errors:   those of load_gpt2_config() and load_weight_file().
/// Example:  gpt2_files_test.cpp, Gpt2Files.ASavedModelIsReadBack
Gpt2 load_gpt2(const std::filesystem::path& folder);

/// Writes config.json and model.safetensors, or shards with an index, into `folder`, which is made if it is missing.
/// transformers' from_pretrained() reads it.
///
/// Units:  a file has at most `max_shard_bytes` bytes of tensors; 0: one file. The default is that of transformers.
/// Memory: a copy of one tensor if it is on a device.
/// Errors: c10::ValueError for packed weights and if the folder already has one of these files; those of
///         write_safetensors_files(). Nothing is left then.
void save_gpt2(const Gpt2Impl& model, const std::filesystem::path& folder,
               uint64_t max_shard_bytes = 5'000'000'000);

}  // namespace mantissa
