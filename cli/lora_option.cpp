#include "cli/lora_option.h"

#include <functional>
#include <map>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/option_parsers.h"
#include "cli/terminal_text.h"
#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

std::vector<std::string> split_at(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

template <typename T>
T number_in_lora(const std::string& flag, const std::string& name, const std::string& text) {
  const ParsedNumber<T> parsed = parse_number<T>(text);
  TORCH_CHECK_VALUE(parsed.value, flag, ": ", name, " ", parsed.problem);
  return *parsed.value;
}

ModuleNames names_in_lora(const std::string& flag, const std::string& name, const std::string& text) {
  if (text == "all-linear") return text;
  const std::vector<std::string> ends = split_at(text, '+');
  for (const std::string& end : ends)
    TORCH_CHECK_VALUE(!end.empty(), flag, ": ", name, "=", text,
                      " has an empty name; give all-linear, or names with + between them");
  return ends;
}

using SetLora = std::function<void(LoraConfig&, const std::string& flag, const std::string& value)>;

/// The settings that have a value, and those that are switches, which have none.
const std::map<std::string, SetLora>& lora_settings() {
  static const std::map<std::string, SetLora> table{
      {"r", [](auto& c, auto& flag, auto& value) { c.r = number_in_lora<int64_t>(flag, "r", value); }},
      {"alpha",
       [](auto& c, auto& flag, auto& value) { c.lora_alpha = number_in_lora<double>(flag, "alpha", value); }},
      {"dropout", [](auto& c, auto& flag,
                     auto& value) { c.lora_dropout = number_in_lora<double>(flag, "dropout", value); }},
      {"targets",
       [](auto& c, auto& flag, auto& value) { c.target_modules = names_in_lora(flag, "targets", value); }},
      {"exclude",
       [](auto& c, auto& flag, auto& value) { c.exclude_modules = names_in_lora(flag, "exclude", value); }},
  };
  return table;
}
const std::map<std::string, bool LoraConfig::*>& lora_switches() {
  static const std::map<std::string, bool LoraConfig::*> table{{"rslora", &LoraConfig::use_rslora},
                                                               {"dora", &LoraConfig::use_dora}};
  return table;
}

}  // namespace

std::optional<LoraConfig> parse_lora(const std::string& flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  TORCH_CHECK_VALUE(printable(text) == text, flag, " '", printable(text),
                    "' has a line break or another control character; write the settings in one line");
  std::vector<std::string> known = keys_of(lora_settings());
  for (const std::string& name : keys_of(lora_switches())) known.push_back(name);
  LoraConfig config;
  std::map<std::string, bool> given;
  for (const std::string& with_blanks : split_at(text, ',')) {
    const std::string part = trimmed(with_blanks);
    TORCH_CHECK_VALUE(!part.empty(), flag, " '", text,
                      "' has an empty setting; leave out the comma beside it");
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    TORCH_CHECK_VALUE(!given[name], flag, " names '", name, "' twice");
    given[name] = true;
    if (const auto found = lora_switches().find(name); found != lora_switches().end()) {
      TORCH_CHECK_VALUE(equals == std::string::npos, flag, ": ", name, " takes no value; got '", part, "'");
      config.*(found->second) = true;
      continue;
    }
    const auto found = lora_settings().find(name);
    const bool follows_names =
        equals == std::string::npos && (given.contains("targets") || given.contains("exclude"));
    TORCH_CHECK_VALUE(found != lora_settings().end(), flag, " has no setting '", name, "'",
                      did_you_mean(name, known), "; it has r, alpha, dropout, targets, exclude, rslora, dora",
                      follows_names ? "; join the names of layers with +, as in targets=qkv+projection" : "");
    TORCH_CHECK_VALUE(equals != std::string::npos, flag, ": ", name, " needs a value, as in ", name, "=",
                      name == "r" ? "16" : "VALUE");
    found->second(config, flag, part.substr(equals + 1));
  }
  naming_lora_settings(flag, [&] { check_lora_config(config); });
  TORCH_CHECK_VALUE(config.lora_alpha != 0, flag,
                    ": alpha is 0, which multiplies the adapter by 0 and trains nothing; give another alpha, "
                    "or leave it out");
  return config;
}

std::string with_lora_settings(const std::string& flag, const std::string& message) {
  return with_names(message, {{"LoraConfig", flag},
                              {"LoRA", flag},
                              {"lora_alpha", "alpha"},
                              {"lora_dropout", "dropout"},
                              {"target_modules", "targets"},
                              {"exclude_modules", "exclude"},
                              {"use_rslora", "rslora"},
                              {"use_dora", "dora"}});
}

}  // namespace mantissa::cli
