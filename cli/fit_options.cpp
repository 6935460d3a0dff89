#include "cli/fit_options.h"

#include <cmath>
#include <fmt/format.h>
#include <set>
#include <sstream>
#include <type_traits>
#include <vector>
#include <yaml-cpp/yaml.h>

#include <c10/util/Exception.h>

#include "cli/text.h"
#include "cli/yaml_file.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

template <typename T>
constexpr const char* kind() {
  if constexpr (std::is_same_v<T, int64_t>) return "a whole number";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  return "one value";
}

/// Whether to_yaml() could repeat `text`: yaml-cpp reads bytes that are not UTF-8, and writes others for
/// them. A zero byte it keeps, but to the system a file's name ends there.
bool is_kept_by_yaml(const std::string& text) {
  if (text.find('\0') != std::string::npos) return false;
  try {
    return YAML::Load(YAML::Dump(YAML::Node(text))).as<std::string>() == text;
  } catch (const YAML::Exception&) {
    return false;
  }
}

}  // namespace

FitOptions merge(FitOptions over, const FitOptions& under) {
  const bool epochs = over.max_epochs.has_value(), steps = over.max_steps.has_value();
  const bool by_name = over.precision.has_value(),
             native = over.amp_backend == "native" || over.amp_backend == "",
             by_level = (over.amp_backend && !native) || (over.amp_level && !over.amp_level->empty());
  std::vector<const void*> members;
  for_each_option(under, [&](const char*, const auto& member, const char*) { members.push_back(&member); });
  size_t next = 0;
  for_each_option(over, [&](const char*, auto& member, const char*) {
    const auto& below = *static_cast<const std::decay_t<decltype(member)>*>(members[next++]);
    if (!member) member = below;
  });
  // A limit that was given stands for both: the other one of the layer below would end the run elsewhere.
  if (steps && !epochs) over.max_epochs.reset();
  if (epochs && !steps) over.max_steps.reset();
  if (by_level && !by_name) over.precision.reset();
  if (by_name && !by_level) over.amp_backend.reset(), over.amp_level.reset();
  if (native && !by_level) over.amp_level.reset();  // the level was of the backend below
  return over;
}

FitOptions parse_yaml(const std::string& text, const std::string& file) {
  const YAML::Node root = parse_document(text, file);
  TORCH_CHECK_VALUE(root.IsMap() || root.IsNull(), file,
                    ": must be a map of options, `key: value` a line; --print-config writes one");
  FitOptions options;
  std::vector<std::string> known;
  for_each_option(options, [&](const char* name, const auto&, const char*) { known.emplace_back(name); });
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const std::string where = fmt::format("{}:{}: ", file, entry.first.Mark().line + 1);
    TORCH_CHECK_VALUE(entry.first.IsScalar(), where,
                      "a key is not the name of an option; write `key: value`, keys: ", join_names(known));
    auto key = entry.first.as<std::string>();
    for (const std::string& name : known)
      if (!key.empty() && key == apex_name(name)) key = name;
    TORCH_CHECK_VALUE(seen.insert(key).second, where, "key '", printable(key),
                      "' stands here a second time; keep one");
    bool found = false;
    for_each_option(options, [&](const char* name, auto& member, const char*) {
      if (key != name) return;
      found = true;
      using Value = typename std::decay_t<decltype(member)>::value_type;
      try {
        TORCH_CHECK_VALUE(entry.second.IsScalar(), "not a scalar");
        member = entry.second.as<Value>();
      } catch (const std::exception&) {
        std::ostringstream value;
        value << entry.second;
        TORCH_CHECK_VALUE(false, where, "'", key, "' must be ", kind<Value>(), ", got '",
                          printable(value.str()), "'");
      }
      if constexpr (std::is_same_v<Value, std::string>) {
        TORCH_CHECK_VALUE(
            is_kept_by_yaml(*member), where, "'", key, "' is '", printable(*member),
            "', which has characters that an option cannot hold; write it in UTF-8, without zero bytes");
      }
    });
    TORCH_CHECK_VALUE(found, where, "unknown key '", printable(key), "'", did_you_mean(key, known),
                      "; keys: ", join_names(known));
  }
  return options;
}

FitOptions read_yaml(const std::filesystem::path& file) {
  return parse_yaml(read_text(file, "--config"), file.string());
}

std::string to_yaml(const FitOptions& options) {
  YAML::Emitter yaml;
  yaml << YAML::BeginMap;
  for_each_option(options, [&](const char* name, const auto& member, const char* help) {
    if (!member) return;
    using Value = typename std::decay_t<decltype(member)>::value_type;
    yaml << YAML::Key << name << YAML::Value;
    if constexpr (std::is_same_v<Value, double>) {
      if (std::isfinite(*member)) {
        yaml << fmt::format("{}", *member);  // the shortest text that reads back as the same number
      } else {
        yaml << *member;  // in YAML's words: .nan, .inf
      }
    } else {
      yaml << *member;
    }
    yaml << YAML::Comment(help);
  });
  yaml << YAML::EndMap;
  return std::string(yaml.c_str()) + "\n";
}

}  // namespace mantissa::cli
