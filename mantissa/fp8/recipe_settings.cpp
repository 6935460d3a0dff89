#include "mantissa/fp8/recipe_settings.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

/// A setting of one recipe.
struct Setting {
  std::string key;
  bool is_switch;
  /// Throws c10::ValueError, which begins with the recipe's and the key's name, for a value that is none.
  void (*set)(Fp8Recipe& recipe, const std::string& where, const std::string& value);
};

struct RecipeRow {
  std::string name;
  Fp8Recipe recipe;  ///< with its defaults
  std::vector<Setting> settings;
};

[[noreturn]] void refuse(const std::string& where, const std::string& value, const std::string& cure) {
  TORCH_CHECK_VALUE(false, where, " '", value, "' is not a valid value", cure);
}

bool to_switch(const std::string& where, const std::string& value) {
  if (value != "true" && value != "false") refuse(where, value, "; choose true or false");
  return value == "true";
}

template <typename Number>
Number to_number(const std::string& where, const std::string& value) {
  const ParsedNumber<Number> parsed = parse_number<Number>(value);
  TORCH_CHECK_VALUE(parsed.value, where, " ", parsed.problem);
  return *parsed.value;
}

template <typename Recipe>
void set_format(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  if (value != "E5M2" && value != "E4M3" && value != "HYBRID")
    refuse(where, value, did_you_mean(value, {"HYBRID", "E4M3"}) + "; choose HYBRID or E4M3");
  std::get<Recipe>(recipe).fp8_format = fp8_format_of(value);  // E5M2 has an error of its own
}

template <typename Recipe>
Setting format_setting() {
  return {"fp8_format", false, &set_format<Recipe>};
}

void set_history_len(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  std::get<DelayedScaling>(recipe).amax_history_len = to_number<int64_t>(where, value);
}

void set_algorithm(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  if (value != "max" && value != "most_recent")
    refuse(where, value, did_you_mean(value, {"max", "most_recent"}) + "; choose max or most_recent");
  std::get<DelayedScaling>(recipe).amax_compute_algo =
      value == "max" ? AmaxComputeAlgo::kMax : AmaxComputeAlgo::kMostRecent;
}

void set_margin(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  std::get<DelayedScaling>(recipe).margin = to_number<int64_t>(where, value);
}

void set_reduce_amax(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  std::get<DelayedScaling>(recipe).reduce_amax = to_switch(where, value);
}

void set_interval(Fp8Recipe& /*recipe*/, const std::string& where, const std::string& value) {
  const auto interval = to_number<int64_t>(where, value);
  TORCH_WARN(where, " ", interval,
             " has no effect: scales change once per step, as in Transformer Engine since 2.0; leave it out");
}

template <typename Recipe>
void set_attention(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  std::get<Recipe>(recipe).fp8_dpa = to_switch(where, value);
}

/// Tensors between layers stay in high precision.
void set_attention_with_projections(Fp8Recipe& /*recipe*/, const std::string& where,
                                    const std::string& value) {
  TORCH_CHECK_VALUE(
      !to_switch(where, value), where,
      " true: attention's inputs and results stay in high precision; write fp8_dpa=true for its two "
      "products in FP8");
}

void set_power_2(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  const bool is_on = to_switch(where, value);
  if (auto* const current = std::get_if<Float8CurrentScaling>(&recipe)) current->scale.power_of_two = is_on;
  if (auto* const blocks = std::get_if<Float8BlockScaling>(&recipe)) blocks->power_of_two = is_on;
}

void set_epsilon(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  const auto epsilon = to_number<double>(where, value);
  if (!(epsilon >= 0 && epsilon <= std::numeric_limits<float>::max()))
    refuse(where, value, "; choose 0 or more, within float32's range");
  const auto least = static_cast<float>(epsilon);
  if (auto* const current = std::get_if<Float8CurrentScaling>(&recipe)) current->scale.epsilon = least;
  if (auto* const blocks = std::get_if<Float8BlockScaling>(&recipe)) blocks->epsilon = least;
}

void set_mx_square(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  std::get<MXFP8BlockScaling>(recipe).enable_2d_quantization = to_switch(where, value);
}

/// Sets a member of NVFP4's recipe, whose switches have the opposite meaning in Transformer Engine.
template <bool NVFP4BlockScaling::*kMember>
void set_disabled(Fp8Recipe& recipe, const std::string& where, const std::string& value) {
  std::get<NVFP4BlockScaling>(recipe).*kMember = !to_switch(where, value);
}

const std::vector<RecipeRow>& recipes() {
  static const Setting power_2 = {"power_2_scale", true, &set_power_2},
                       epsilon = {"amax_epsilon", false, &set_epsilon},
                       fp8_mha = {"fp8_mha", true, &set_attention_with_projections};
  static const std::vector<RecipeRow> table{
      {"DelayedScaling",
       DelayedScaling{},
       {format_setting<DelayedScaling>(),
        {"amax_history_len", false, &set_history_len},
        {"amax_compute_algo", false, &set_algorithm},
        {"margin", false, &set_margin},
        {"reduce_amax", true, &set_reduce_amax},
        {"interval", false, &set_interval},
        {"fp8_dpa", true, &set_attention<DelayedScaling>},
        fp8_mha}},
      {"Float8CurrentScaling",
       Float8CurrentScaling{},
       {format_setting<Float8CurrentScaling>(),
        power_2,
        epsilon,
        {"fp8_dpa", true, &set_attention<Float8CurrentScaling>},
        fp8_mha}},
      {"Float8BlockScaling", Float8BlockScaling{}, {format_setting<Float8BlockScaling>(), power_2, epsilon}},
      {"MXFP8BlockScaling",
       MXFP8BlockScaling{},
       {format_setting<MXFP8BlockScaling>(), {"enable_2d_quantization", true, &set_mx_square}}},
      {"NVFP4BlockScaling",
       NVFP4BlockScaling{},
       {{"disable_rht", true, &set_disabled<&NVFP4BlockScaling::random_hadamard_transform>},
        {"disable_stochastic_rounding", true, &set_disabled<&NVFP4BlockScaling::stochastic_rounding>},
        {"disable_2d_quantization", true, &set_disabled<&NVFP4BlockScaling::enable_2d_quantization>}}},
  };
  return table;
}

const RecipeRow& row_of(const std::string& name) {
  if (name.empty()) return recipes().front();
  for (const RecipeRow& row : recipes())
    if (row.name == name) return row;
  TORCH_CHECK_VALUE(false, "recipe '", name, "' is unknown", did_you_mean(name, fp8_recipe_names()),
                    "; choose from ", join_names(fp8_recipe_names()));
}

const Setting* find_setting(const RecipeRow& row, const std::string& key) {
  const auto found = std::find_if(row.settings.begin(), row.settings.end(),
                                  [&](const Setting& setting) { return setting.key == key; });
  return found == row.settings.end() ? nullptr : &*found;
}

/// Returns "; Float8BlockScaling has it" for a key of other recipes.
std::string owners_of(const std::string& key) {
  std::vector<std::string> names;
  for (const RecipeRow& row : recipes())
    if (find_setting(row, key)) names.push_back(row.name);
  return names.empty() ? "" : "; it is a setting of " + join_names(names);
}

}  // namespace

std::vector<std::string> fp8_recipe_names() {
  std::vector<std::string> names;
  for (const RecipeRow& row : recipes()) names.push_back(row.name);
  return names;
}

Fp8Recipe make_fp8_recipe(const std::string& name, const std::map<std::string, std::string>& settings) {
  const RecipeRow& row = row_of(name);
  Fp8Recipe recipe = row.recipe;
  std::vector<std::string> keys;
  for (const Setting& setting : row.settings) keys.push_back(setting.key);
  for (const auto& [key, value] : settings) {
    const Setting* const setting = find_setting(row, key);
    TORCH_CHECK_VALUE(setting, "recipe ", row.name, " has no setting '", key, "'", did_you_mean(key, keys),
                      owners_of(key), "; it has ", join_names(keys));
    setting->set(recipe, row.name + ": " + key, value);
  }
  check_recipe(recipe);
  return recipe;
}

bool needs_value(const std::string& recipe_name, const std::string& setting) {
  const Setting* const found = find_setting(row_of(recipe_name), setting);
  return found && !found->is_switch;
}

}  // namespace mantissa
