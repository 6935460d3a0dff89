#pragma once

#include <optional>
#include <string>

#include <c10/util/Exception.h>

#include "mantissa/lora/lora_config.h"

namespace mantissa::cli {

/// Parses the value of --lora, "r=16,alpha=32,dropout=0.05,targets=qkv+projection,exclude=head,rslora,dora";
/// returns nothing for "".
/// Errors: c10::ValueError that names the flag and the setting.
std::optional<LoraConfig> parse_lora(const std::string& flag, const std::string& text);

/// Returns a message about a LoraConfig that names the settings of --lora instead of its members.
std::string with_lora_settings(const std::string& flag, const std::string& message);

/// Runs code that uses a LoraConfig of --lora. Its c10::ValueError names the flag and its settings.
template <typename Use>
auto naming_lora_settings(const std::string& flag, const Use& use) {
  try {
    return use();
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(ValueError, with_lora_settings(flag, error.what_without_backtrace()));
  }
}

}  // namespace mantissa::cli
