#pragma once

#include <map>
#include <string>
#include <vector>

#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// Returns the names of the recipes, the default one first.
std::vector<std::string> fp8_recipe_names();

/// Makes a recipe from text, with Transformer Engine's names: of a file, or of the command line.
///
/// `name`:     one of fp8_recipe_names(); "" means DelayedScaling, as in Lightning.
/// `settings`: values by their keys, such as {"amax_history_len", "16"}; "true" and "false" for switches. What is left
///             out has the recipe's default. `interval` is accepted with a warning: scales change once per step.
/// Errors:     c10::ValueError that names the key, the choices and the cure: for an unknown name or key, and for a value that
///             is none; those of check_recipe().
Fp8Recipe make_fp8_recipe(const std::string& name, const std::map<std::string, std::string>& settings);

/// Whether the recipe has a setting of this name that needs a value. A setting that is true or false needs none: its
/// name alone means true.
/// Errors: c10::ValueError for an unknown recipe.
bool needs_value(const std::string& recipe_name, const std::string& setting);

}  // namespace mantissa
