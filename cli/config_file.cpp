#include "cli/fit_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <set>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <vector>
#include <yaml-cpp/yaml.h>

#include <c10/util/Exception.h>

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

/// What other programs call an option.
struct OtherName {
  std::string_view theirs, ours;
};
constexpr auto kOtherNames = std::to_array<OtherName>({
    {"learning_rate", "lr"},
    {"epochs", "max_epochs"},
    {"num_epochs", "max_epochs"},
    {"num_train_epochs", "max_epochs"},
    {"steps", "max_steps"},
    {"num_steps", "max_steps"},
    {"dataset", "data"},
    {"network", "model"},
    {"arch", "model"},
    {"dtype", "precision"},
    {"amp", "precision"},
    {"accelerator", "device"},
    {"gpus", "device"},
    {"workers", "num_workers"},
    {"scheduler", "lr_schedule"},
    {"warmup", "warmup_steps"},
    {"decay", "weight_decay"},
    {"grad_clip", "gradient_clip_val"},
    {"max_grad_norm", "gradient_clip_val"},
    {"gradient_accumulation_steps", "accumulate_grad_batches"},
    {"ema", "ema_decay"},
    {"output_dir", "output"},
    {"out", "output"},
    {"default_root_dir", "output"},
    {"random_seed", "seed"},
    {"seed_everything", "seed"},
});

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string did_you_mean_option(const std::string& name, const std::vector<std::string>& options) {
  const std::string meant = option_meant(name, options);
  return meant.empty() ? "" : "; did you mean '" + meant + "'?";
}

/// What to do with the first of the options that stand under `key`, where none may stand.
std::string nested_cure(const std::string& key, const YAML::Node& value,
                        const std::vector<std::string>& known) {
  if (!value.IsMap() || value.size() == 0 || !value.begin()->first.IsScalar()) return "";
  const auto inner = value.begin()->first.as<std::string>();
  const std::string meant = option_meant(inner, known);
  return "; options stand at the top level, and none under another: write " +
         (meant.empty() ? "what is under '" + printable(key) + "'" : "'" + meant + "'") + " there";
}

/// A scalar as a Value.
/// Errors: c10::ValueError, after `where`, for a number that Value cannot hold; whatever YAML throws for what
///         is no Value.
template <typename Value>
Value scalar(const YAML::Node& node, const std::string& where) {
  if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
    std::string_view text = node.Scalar();
    if (text.starts_with('+')) text.remove_prefix(1);
    const ParsedNumber<Value> parsed = parse_number<Value>(text);
    // yaml-cpp would take 0 for a number that is too small.
    TORCH_CHECK_VALUE(!parsed.is_out_of_range, where, printable(parsed.problem));
    if (std::is_unsigned_v<Value> && text.starts_with('-') && parsed.value) return *parsed.value;
  }
  return node.as<Value>();
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

std::string option_meant(const std::string& name, const std::vector<std::string>& options) {
  const std::string key = with_underscores(name);
  const auto* const other = std::find_if(kOtherNames.begin(), kOtherNames.end(), [&](const OtherName& row) {
    return row.theirs == key.substr(std::min(key.find_first_not_of('_'), key.size()));
  });
  const auto meant = std::find_if(options.begin(), options.end(), [&](const std::string& option) {
    const std::string bare = with_underscores(option);
    return other != kOtherNames.end() && bare.substr(bare.find_first_not_of('_')) == other->ours;
  });
  return meant != options.end() ? *meant : nearest_name(name, options);
}

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
    TORCH_CHECK_VALUE(
        entry.first.IsScalar(), where,
        "a key is not the name of an option; write `key: value`; `mantissa fit --print-config` lists "
        "all keys");
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
        if (entry.second.IsScalar()) member = scalar<Value>(entry.second, where + "'" + key + "' ");
      } catch (const YAML::Exception&) {
        member.reset();
      }
      if (!member) {
        std::ostringstream value;
        value << entry.second;
        TORCH_CHECK_VALUE(false, where, "'", key, "' must be ", kind<Value>(), ", got ",
                          entry.second.IsNull() ? "nothing" : "'" + printable(value.str()) + "'",
                          nested_cure(key, entry.second, known));
      }
      if constexpr (std::is_same_v<Value, std::string>) {
        TORCH_CHECK_VALUE(
            is_kept_by_yaml(*member), where, "'", key, "' is '", printable(*member),
            "', which has characters that an option cannot hold; write it in UTF-8, without zero bytes");
      }
    });
    if (found) continue;
    const std::string cure =
        entry.second.IsMap() ? nested_cure(key, entry.second, known) : did_you_mean_option(key, known);
    TORCH_CHECK_VALUE(false, where, "unknown key '", printable(key), "'",
                      cure.empty() ? "; `mantissa fit --print-config` lists all keys" : cure);
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
