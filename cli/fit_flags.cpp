#include "cli/fit_flags.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fmt/format.h>
#include <map>
#include <string_view>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/data/kinds.h"
#include "cli/errors.h"
#include "mantissa/core/parse_number.h"

namespace mantissa::cli {
namespace {

std::string shown(const OptionValue& value) {
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

/// Returns "; cifar10, cifar100: 4": the defaults for some kinds of data.
std::string defaults_of_data(const std::string& option) {
  std::map<std::string, std::string> kinds_of;
  for (const DataKind& kind : data_kinds())
    for (const auto& [name, value] : kind.defaults) {
      std::string& kinds = kinds_of[shown(value)];
      if (name == option) kinds += (kinds.empty() ? "" : ", ") + kind.name;
    }
  std::string text;
  for (const auto& [value, kinds] : kinds_of)
    if (!kinds.empty()) text += fmt::format("; {}: {}", kinds, value);
  return text;
}

/// Returns " [32; text: 16]": the default of an option, and those for text and for kinds of data that differ. For a
/// switch it returns " [on]" or nothing.
std::string default_shown(const Option& option) {
  if (option.is_switch()) return std::get<bool>(option.default_value) ? " [on]" : "";
  const std::string images = shown(default_of(option, false)), text = shown(default_of(option, true));
  const std::string others = (text == images ? "" : "; text: " + text) + defaults_of_data(option.name);
  return images.empty() && others.empty() ? "" : " [" + images + others + "]";
}

std::string off_flag(const std::string& flag) { return "--no-" + flag.substr(2); }

/// Formats names without CLI11's mark of the name that turns a switch off: "--x,--no-x{false}".
class PlainNames final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string names = CLI::Formatter::make_option_name(option, is_positional);
    for (size_t at = names.find('{'); at != std::string::npos; at = names.find('{'))
      names.erase(at, names.find('}', at) + 1 - at);
    return names;
  }
};

void add_switch(CLI::App& subcommand, OptionValues& values, const Option& option, const std::string& help) {
  const std::string flag = flag_of(option.name);
  const auto set = [&values, name = option.name](int64_t count) { values.set(name, count > 0); };
  subcommand.add_flag_function(flag + ",!" + off_flag(flag), set, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->group(group_name(option.group));
}

/// Returns the type of an option's value, for help.
template <typename Value>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<Value, double>) return "FLOAT";
  if constexpr (std::is_same_v<Value, int64_t>) return "INT";
  if constexpr (std::is_same_v<Value, uint64_t>) return "UINT";
  return "TEXT";
}

/// Returns the problem of a list without a word, or "".
std::string has_a_name(const std::string& text) {
  return text.empty() ? "'' has no name; give names with commas between them, or leave it out" : "";
}

template <typename Value>
void add_value(CLI::App& subcommand, OptionValues& values, const Option& option, const std::string& help) {
  std::string flags = flag_of(option.name);
  if (!option.also_called.empty()) flags += "," + flag_of(option.also_called);
  const auto set = [&values, name = option.name](const std::string& word) {
    if constexpr (std::is_same_v<Value, std::string>) {
      values.set(name, word);
    } else {
      values.set(name, *parse_number<Value>(word).value);
    }
  };
  CLI::Option* const added = subcommand.add_option_function<std::string>(flags, set, help);
  added->type_name(type_name<Value>())->group(group_name(option.group));
  // CLI11's own parser would read 010 as 8, treat an empty word as no option, a number that is too large as
  // the largest one, and one that is too small as 0.
  if constexpr (!std::is_same_v<Value, std::string>)
    added->check([](const std::string& word) { return parse_number<Value>(word).problem; }, "");
  // In a configuration "" means none; on the command line it most likely comes from an unset variable.
  if (option.names_a_file) added->check(names_a_file, "");
  if (option.is_list && option.choices.empty()) added->check(has_a_name, "");
}

}  // namespace

bool takes(FlagsOf commands, const Option& option) {
  switch (commands) {
    case FlagsOf::kFit:
      return true;
    case FlagsOf::kResume:
      return option.in_resume;
    case FlagsOf::kTrained:
      return option.in_trained;
    case FlagsOf::kGenerate:
      return option.in_trained && !option.not_in_generate;
  }
  return false;
}

void add_fit_flags(CLI::App& subcommand, OptionValues& values, FlagsOf commands) {
  subcommand.formatter(std::make_shared<PlainNames>());
  for (const Option& option : options()) {
    if (!takes(commands, option)) continue;
    // The defaults of the other commands are the run's own values.
    const bool is_fit = commands == FlagsOf::kFit;
    const std::string& text = is_fit || option.help_elsewhere.empty() ? option.help : option.help_elsewhere;
    const std::string help = text + (is_fit ? default_shown(option) : "");
    if (option.is_switch()) {
      add_switch(subcommand, values, option, help);
      continue;
    }
    visit_kind(option.to.kind, [&](auto* type) {
      using Value = std::remove_pointer_t<decltype(type)>;
      if constexpr (!std::is_same_v<Value, bool>) add_value<Value>(subcommand, values, option, help);
    });
  }
}

void check_switches(int argc, const char* const* argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i], flag = word.substr(0, word.find('='));
    const std::string_view next = i + 1 < argc ? argv[i + 1] : "";
    constexpr std::array<std::string_view, 6> kValues{"true", "false", "yes", "no", "on", "off"};
    if (flag == word && std::find(kValues.begin(), kValues.end(), next) == kValues.end()) continue;
    for (const Option& option : options()) {
      const std::string on = flag_of(option.name), off = off_flag(on);
      if (!option.is_switch() || (flag != on && flag != off)) continue;
      throw UsageError(
          fmt::format("{} is a switch and takes no value; write {}, or {} to turn it off", flag, on, off));
    }
  }
}

void add_plan_flag(CLI::App& subcommand, bool& plan) {
  subcommand.add_flag("--plan", plan,
                      "print the memory that this run and every other mode would need, and after it what it "
                      "took");
}

void add_json_flag(CLI::App& subcommand, std::string& json) {
  subcommand.add_option("--json", json, "write the result here, machine-readably; -: standard output")
      ->check(names_a_file, "");
}

std::string names_a_file(const std::string& text) {
  return text.empty() ? "'' is not a file; name one, or leave it out" : "";
}

}  // namespace mantissa::cli
