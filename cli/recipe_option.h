#pragma once

#include <string>

#include "mantissa/fp8/recipe.h"

namespace mantissa::cli {

/// Parses the value of --recipe: "DelayedScaling,amax_history_len=16,reduce_amax=false". Without a name, the settings are those of
/// DelayedScaling. A switch without a value is on.
/// Errors: c10::ValueError that names the flag and the setting.
Fp8Recipe parse_recipe(const std::string& flag, const std::string& text);

}  // namespace mantissa::cli
