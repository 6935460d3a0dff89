#pragma once

#include <optional>
#include <string>

#include "mantissa/lora/lora_config.h"

namespace mantissa::cli {

/// Parses the value of --lora, "r=16,alpha=32,dropout=0.05,targets=qkv+projection,exclude=head,rslora,dora";
/// returns nothing for "".
/// Errors: c10::ValueError that names the flag and the setting; those of check_lora_config().
std::optional<LoraConfig> parse_lora(const std::string& flag, const std::string& text);

}  // namespace mantissa::cli
