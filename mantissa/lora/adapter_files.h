#pragma once

#include <filesystem>

#include "mantissa/lora/lora_config.h"

namespace mantissa {

/// The files of an adapter's folder, as PEFT names them.
inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";

/// Returns the settings of the adapter in `folder`.
/// Errors: c10::ValueError if the folder has no adapter_config.json; those of parse_adapter_config().
LoraConfig load_adapter_config(const std::filesystem::path& folder);

}  // namespace mantissa
