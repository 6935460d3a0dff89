#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/io/json_internal.h"
#include "mantissa/lora/lora_config.h"

namespace mantissa {
namespace {

using nlohmann::json;

/// Levels of nesting that are enough for every setting that PEFT writes.
constexpr int kMaxDepth = 16;

/// Keys that say only how PEFT initializes, names or places an adapter, and nothing about what it computes once its
/// weights are loaded.
const std::set<std::string>& harmless_keys() {
  static const std::set<std::string> keys{"auto_mapping",  "corda_config",   "ensure_weight_tying",
                                          "eva_config",    "inference_mode", "layers_pattern",
                                          "loftq_config",  "lora_ga_config", "megatron_config",
                                          "megatron_core", "peft_version",   "qalora_group_size",
                                          "revision",      "runtime_config", "task_type"};
  return keys;
}

bool is_unset(const json& value) {
  const auto* const text = value.get_ptr<const json::string_t*>();
  return value.is_null() || value == false || (text && text->empty()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// Returns how an error about the file `from` begins.
std::string subject_of(const std::string& from) { return "adapter_config: '" + from + "' "; }

/// Reads the object, key by key.
class ConfigReader {
 public:
  ConfigReader(std::string_view text, std::string from) : from_(std::move(from)) {
    root_ = parse_json(text, kMaxDepth, [&](const std::string& what) { fail(what); });
    if (!root_.is_object()) fail("is no JSON object");
  }

  LoraConfig read() {
    const auto type = root_.find("peft_type");
    if (type == root_.end() || *type != "LORA")
      fail("has the peft_type " + (type == root_.end() ? "nothing" : shown(*type)) +
           ", and only LORA is known; load an adapter that was made with LoraConfig");
    LoraConfig config;
    config.target_modules = {};
    for (const auto& [key, value] : root_.items()) read_entry(key, value, config);
    if (config.target_modules.empty())
      fail("names no target_modules; save the adapter with a PEFT that writes them");
    return config;
  }

 private:
  void read_entry(const std::string& key, const json& value, LoraConfig& config) {
    if (key == "peft_type" || value.is_null() || harmless_keys().contains(key)) return;
    if (key == "bias") {
      if (value != "none")
        fail("sets bias to " + shown(value) + ", and only none is supported; train without biases");
    } else if (key == "init_lora_weights") {
      check_initialization(value);
    } else if (key == "r") {
      config.r = integer(key, value);
    } else if (key == "lora_alpha") {
      config.lora_alpha = number(key, value);
    } else if (key == "lora_dropout") {
      config.lora_dropout = number(key, value);
    } else if (key == "use_rslora") {
      config.use_rslora = is_true(key, value);
    } else if (key == "use_dora") {
      config.use_dora = is_true(key, value);
    } else if (key == "target_modules") {
      config.target_modules = names(key, value);
    } else if (key == "exclude_modules") {
      config.exclude_modules = names(key, value);
    } else if (key == "base_model_name_or_path") {
      config.base_model_name_or_path = text(key, value);
    } else if (key == "rank_pattern") {
      for (const auto& [name, rank] : object(key, value).items())
        config.rank_pattern[name] = integer(key, rank);
    } else if (key == "alpha_pattern") {
      for (const auto& [name, alpha] : object(key, value).items())
        config.alpha_pattern[name] = number(key, alpha);
    } else if (!is_unset(value)) {
      fail("sets " + fit_for_message(key) + " to " + shown(value) +
           ", which is not supported here; train the adapter without it");
    }
  }

  /// The other ways of initialization change the base model's weights, too.
  void check_initialization(const json& value) const {
    if (value.is_boolean() || value == "gaussian" || value == "eva" || value == "orthogonal") return;
    fail("sets init_lora_weights to " + shown(value) +
         ", which changes the base model's weights; convert it in PEFT with "
         "path_initial_model_for_weight_conversion");
  }

  int64_t integer(const std::string& key, const json& value) const {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > 1 << 20))
      fail("needs an integer up to 1048576 for " + key + "; got " + shown(value));
    return value.get<int64_t>();
  }
  double number(const std::string& key, const json& value) const {
    if (!value.is_number()) fail("needs a number for " + key + "; got " + shown(value));
    return value.get<double>();
  }
  bool is_true(const std::string& key, const json& value) const {
    if (!value.is_boolean()) fail("needs true or false for " + key + "; got " + shown(value));
    return value.get<bool>();
  }
  std::string text(const std::string& key, const json& value) const {
    if (!value.is_string()) fail("needs a text for " + key + "; got " + shown(value));
    return value.get<std::string>();
  }
  const json& object(const std::string& key, const json& value) const {
    if (!value.is_object()) fail("needs an object for " + key + "; got " + shown(value));
    return value;
  }
  ModuleNames names(const std::string& key, const json& value) const {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) fail("needs a text or a list of texts for " + key + "; got " + shown(value));
    std::vector<std::string> ends;
    for (const json& end : value) ends.push_back(text(key, end));
    return ends;
  }

  static std::string shown(const json& value) {
    return fit_for_message(value.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  [[noreturn]] void fail(const std::string& what) const { TORCH_CHECK_VALUE(false, subject_of(from_), what); }

  json root_;
  const std::string from_;
};

/// Whole numbers as PEFT writes them: 16, not 16.0.
json as_number(double value) {
  const bool is_whole = std::floor(value) == value && std::abs(value) < 1e15;
  return is_whole ? json(static_cast<int64_t>(value)) : json(value);
}

json as_json(const ModuleNames& names) {
  if (names.empty()) return nullptr;
  return names.ends().empty() ? json(names.expression()) : json(names.ends());
}

}  // namespace

std::string to_adapter_config(const LoraConfig& config) {
  check_lora_config(config);
  json alphas = json::object();
  for (const auto& [name, alpha] : config.alpha_pattern) alphas[name] = as_number(alpha);
  const json path = config.base_model_name_or_path.empty() ? json() : json(config.base_model_name_or_path);
  const json content{
      {"alpha_pattern", alphas},
      {"base_model_name_or_path", path},
      {"bias", "none"},
      {"exclude_modules", as_json(config.exclude_modules)},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", as_number(config.lora_alpha)},
      {"lora_dropout", config.lora_dropout},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", config.r},
      {"rank_pattern", config.rank_pattern.empty() ? json::object() : json(config.rank_pattern)},
      {"target_modules", as_json(config.target_modules)},
      {"task_type", nullptr},
      {"use_dora", config.use_dora},
      {"use_rslora", config.use_rslora}};
  return content.dump(2, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + "\n";
}

LoraConfig parse_adapter_config(std::string_view text, const std::string& from) {
  try {
    LoraConfig config = ConfigReader(text, from).read();
    check_lora_config(config);
    return config;
  } catch (const c10::ValueError& error) {
    const std::string what = error.what_without_backtrace(), subject = subject_of(from);
    if (what.starts_with(subject)) throw;
    TORCH_CHECK_VALUE(false, subject, "has a setting that cannot be: ", what);
  }
}

}  // namespace mantissa
