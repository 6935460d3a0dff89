#include "cli/fit_options.h"

#include <fmt/format.h>
#include <set>
#include <sstream>
#include <type_traits>
#include <vector>
#include <yaml-cpp/yaml.h>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

template <typename T>
constexpr const char* kind() {
  if constexpr (std::is_same_v<T, int64_t>) return "a whole number";
  if constexpr (std::is_same_v<T, double>) return "a number";
  return "text";
}

}  // namespace

FitOptions merge(FitOptions over, const FitOptions& under) {
  std::vector<const void*> members;
  for_each_option(under, [&](const char*, const auto& member, const char*) { members.push_back(&member); });
  size_t next = 0;
  for_each_option(over, [&](const char*, auto& member, const char*) {
    const auto& below = *static_cast<const std::decay_t<decltype(member)>*>(members[next++]);
    if (!member) member = below;
  });
  return over;
}

FitOptions read_yaml(const std::filesystem::path& file) {
  YAML::Node root;
  try {
    root = YAML::LoadFile(file.string());
  } catch (const YAML::BadFile&) {
    TORCH_CHECK(false, file.string(), ": cannot be read; give --config an existing YAML file");
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, file.string(), ":", error.mark.line + 1, ": not YAML: ", error.msg);
  }
  TORCH_CHECK_VALUE(root.IsMap() || root.IsNull(), file.string(),
                    ": must be a map of options, `key: value` a line; --print-config writes one");
  FitOptions options;
  std::vector<std::string> known;
  for_each_option(options, [&](const char* name, const auto&, const char*) { known.emplace_back(name); });
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const auto key = entry.first.as<std::string>();
    const std::string where = fmt::format("{}:{}: ", file.string(), entry.first.Mark().line + 1);
    TORCH_CHECK_VALUE(seen.insert(key).second, where, "key '", key, "' stands here a second time; keep one");
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
        TORCH_CHECK_VALUE(false, where, "'", key, "' must be ", kind<Value>(), ", got '", value.str(), "'");
      }
    });
    TORCH_CHECK_VALUE(found, where, "unknown key '", key, "'", did_you_mean(key, known),
                      "; keys: ", join_names(known));
  }
  return options;
}

std::string to_yaml(const FitOptions& options) {
  YAML::Emitter yaml;
  yaml.SetDoublePrecision(15);  // 0.05 stays 0.05
  yaml << YAML::BeginMap;
  for_each_option(options, [&](const char* name, const auto& member, const char* help) {
    if (!member) return;
    yaml << YAML::Key << name << YAML::Value << *member << YAML::Comment(help);
  });
  yaml << YAML::EndMap;
  return std::string(yaml.c_str()) + "\n";
}

}  // namespace mantissa::cli
