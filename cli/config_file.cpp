#include "cli/config_file.h"

#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <vector>
#include <yaml-cpp/yaml.h>

#include <c10/util/Exception.h>

#include "cli/option.h"
#include "cli/terminal_text.h"
#include "cli/yaml_file.h"
#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

template <typename T>
constexpr const char* kind() {
  if constexpr (std::is_same_v<T, int64_t>) return "a whole number";
  if constexpr (std::is_same_v<T, uint64_t>) return "a whole number from 0 to 18446744073709551615";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  return "one value";
}

std::string did_you_mean_option(const std::string& name, const std::vector<std::string>& options) {
  const std::string meant = option_meant(name, options);
  return meant.empty() ? "" : "; did you mean '" + meant + "'?";
}

/// Returns the remedy for the first option below `key`, where no options are allowed.
std::string nested_cure(const std::string& key, const YAML::Node& value,
                        const std::vector<std::string>& known) {
  if (!value.IsMap() || value.size() == 0 || !value.begin()->first.IsScalar()) return "";
  const auto inner = value.begin()->first.as<std::string>();
  const std::string meant = option_meant(inner, known);
  return "; options must be at the top level: write " +
         (meant.empty() ? "what is under '" + printable(key) + "'" : "'" + meant + "'") + " there";
}

/// Returns the elements of a list with `separator` between them; nothing for a value that is no list of scalars.
std::optional<std::string> joined(const YAML::Node& value, const char* separator) {
  std::string text;
  if (!value.IsSequence()) return std::nullopt;
  for (const auto& element : value) {
    if (!element.IsScalar()) return std::nullopt;
    text += (text.empty() ? "" : separator) + element.Scalar();
  }
  return text;
}

/// Returns a map of settings in the form of Option::has_settings; nothing for a map that has no such form.
std::optional<std::string> joined_settings(const YAML::Node& value) {
  std::string text;
  for (const auto& setting : value) {
    const std::optional<std::string> of_setting =
        setting.second.IsScalar() ? setting.second.Scalar() : joined(setting.second, "+");
    if (!setting.first.IsScalar() || !of_setting) return std::nullopt;
    if (*of_setting == "false") continue;  // a switch that is off
    text += (text.empty() ? "" : ",") + setting.first.Scalar();
    if (*of_setting != "true") text += "=" + *of_setting;
  }
  return text;
}

/// Returns a map of settings as the text that an option with Option::takes_map takes.
/// Errors: c10::ValueError that begins with `where`, for a setting that has no single value.
std::string text_of_map(const YAML::Node& map, const std::string& where) {
  std::string name, settings;
  for (const auto& setting : map) {
    TORCH_CHECK_VALUE(setting.first.IsScalar() && setting.second.IsScalar(), where,
                      "has a setting that is no `key: value`; give each setting one value");
    const std::string &key = setting.first.Scalar(), &value = setting.second.Scalar();
    (key == "name" ? name : settings) += key == "name" ? value : "," + key + "=" + value;
  }
  return name.empty() && !settings.empty() ? settings.substr(1) : name + settings;
}

/// Returns the remedy for a list or a map where an option takes one text: that text.
std::string joined_cure(const Option& option, const YAML::Node& value) {
  const bool is_list = option.is_list && value.IsSequence(), is_map = option.has_settings && value.IsMap();
  if (!is_list && !is_map) return "";
  const std::optional<std::string> text = is_list ? joined(value, ",") : joined_settings(value);
  if (!text) return "; write one text, as on the command line";
  return text->empty() ? "; leave it out" : "; write `" + option.name + ": " + printable(*text) + "`";
}

/// Reads a scalar as a Value.
/// Errors: c10::ValueError that begins with `where`, for a number that Value cannot hold; YAML's exception
///         for text that is not a Value.
template <typename Value>
Value scalar(const YAML::Node& node, const std::string& where) {
  if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
    std::string_view text = node.Scalar();
    if (text.starts_with('+')) text.remove_prefix(1);
    const ParsedNumber<Value> parsed = parse_number<Value>(text);
    // yaml-cpp would read a number that is too small as 0.
    TORCH_CHECK_VALUE(!parsed.is_out_of_range, where, printable(parsed.problem));
  }
  return node.as<Value>();
}

/// True if to_yaml() could repeat `text`. yaml-cpp reads bytes that are not UTF-8, but writes others instead.
/// It keeps a zero byte, but the system ends a file name there.
bool is_kept_by_yaml(const std::string& text) {
  if (text.find('\0') != std::string::npos) return false;
  try {
    return YAML::Load(YAML::Dump(YAML::Node(text))).as<std::string>() == text;
  } catch (const YAML::Exception&) {
    return false;
  }
}

/// Returns the value of `option` that `node` holds.
/// Errors: c10::ValueError that begins with `where`, for a value of another type.
OptionValue value_of(const Option& option, const YAML::Node& node, const std::string& where,
                     const std::vector<std::string>& known) {
  return visit_kind(option.to.kind, [&](auto* type) -> OptionValue {
    using Value = std::remove_pointer_t<decltype(type)>;
    std::optional<Value> value;
    if constexpr (std::is_same_v<Value, std::string>) {
      if (option.takes_map && node.IsMap() && node.size() > 0)
        value = text_of_map(node, where + "'" + option.name + "' ");
      if (option.is_list && node.size() > 0) value = joined(node, ",");
    }
    try {
      if (node.IsScalar()) value = scalar<Value>(node, where + "'" + option.name + "' ");
    } catch (const YAML::Exception&) {
      value.reset();
    }
    if (!value) {
      std::ostringstream text;
      text << node;
      const std::string cure = joined_cure(option, node);
      TORCH_CHECK_VALUE(false, where, "'", option.name, "' must be ", kind<Value>(), ", got ",
                        node.IsNull() ? "nothing" : "'" + printable(text.str()) + "'",
                        cure.empty() ? nested_cure(option.name, node, known) : cure);
    }
    if constexpr (std::is_same_v<Value, std::string>) {
      TORCH_CHECK_VALUE(
          is_kept_by_yaml(*value), where, "'", option.name, "' is '", printable(*value),
          "', which has characters that an option cannot hold; write it in UTF-8, without zero bytes");
    }
    return *value;
  });
}

}  // namespace

OptionValues parse_yaml(const std::string& text, const std::string& file) {
  const YAML::Node root = parse_document(text, file);
  TORCH_CHECK_VALUE(root.IsMap() || root.IsNull(), file,
                    ": must be a map of options, `key: value` a line; --print-config writes one");
  OptionValues values;
  std::vector<std::string> known;
  for (const Option& option : options()) known.push_back(option.name);
  for (const auto& entry : root) {
    const std::string where = fmt::format("{}:{}: ", file, entry.first.Mark().line + 1);
    TORCH_CHECK_VALUE(
        entry.first.IsScalar(), where,
        "a key is not the name of an option; write `key: value`; `mantissa fit --print-config` lists "
        "all keys");
    auto key = entry.first.as<std::string>();
    for (const Option& option : options())
      if (!key.empty() && key == option.also_called) key = option.name;
    if (const Option* const option = find_option(key)) {
      TORCH_CHECK_VALUE(!values.has(key), where, "key '", printable(key), "' is listed twice; keep one");
      values.set(key, value_of(*option, entry.second, where, known));
      continue;
    }
    const std::string cure =
        entry.second.IsMap() ? nested_cure(key, entry.second, known) : did_you_mean_option(key, known);
    TORCH_CHECK_VALUE(false, where, "unknown key '", printable(key), "'",
                      cure.empty() ? "; `mantissa fit --print-config` lists all keys" : cure);
  }
  return values;
}

OptionValues read_yaml(const std::filesystem::path& file) {
  return parse_yaml(read_text(file, "--config"), file.string());
}

std::string to_yaml(const OptionValues& values) {
  YAML::Emitter yaml;
  yaml << YAML::BeginMap;
  for (const Option& option : options()) {
    const OptionValue* const value = values.find(option.name);
    if (!value) continue;
    yaml << YAML::Key << option.name << YAML::Value;
    const auto* const number = std::get_if<double>(value);
    if (number && std::isfinite(*number)) {
      yaml << fmt::format("{}", *number);  // the shortest text that reads back as the same number
    } else {
      std::visit([&](const auto& held) { yaml << held; }, *value);  // inf and nan as YAML writes them
    }
    yaml << YAML::Comment(option.help);
  }
  yaml << YAML::EndMap;
  return std::string(yaml.c_str()) + "\n";
}

}  // namespace mantissa::cli
