#include "cli/fit_flags.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/recipe.h"
#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

std::string flag_name(std::string name) {
  for (char& c : name)
    if (c == '_') c = '-';
  return "--" + name;
}

/// " [32; text: 16]": what an option is when it is not given, and with text if that differs.
std::string default_of(const std::string& option) {
  FitOptions text;
  text.data = "text:FILE";
  std::vector<std::string> defaults;
  for (const FitOptions& recipe : {resolve({}), resolve(text)}) {
    for_each_option(recipe, [&](const char* name, const auto& member, const char*) {
      if (name == option) defaults.push_back(fmt::format("{}", *member));
    });
  }
  if (option == "data" || defaults[0] == defaults[1])
    return defaults[0].empty() ? "" : " [" + defaults[0] + "]";
  return fmt::format(" [{}; text: {}]", defaults[0], defaults[1]);
}

/// Why `text` is no Value, or "". CLI11's own reading takes an empty word for no option at all, 2 for true, a
/// number that is too large for the largest one, and one that is too small for 0.
template <typename Value>
std::string misfit(const std::string& text) {
  if constexpr (std::is_same_v<Value, bool>) {
    const std::vector<std::string> words{"true", "false", "yes", "no", "on", "off", "1", "0"};
    const bool known = std::find(words.begin(), words.end(), text) != words.end();
    return known ? "" : "'" + text + "' is not one" + did_you_mean(text, words) + "; choose true or false";
  } else {
    return parse_number<Value>(text).problem;
  }
}

}  // namespace

void add_fit_flags(CLI::App& subcommand, FitOptions& options, const std::vector<std::string>& only) {
  for_each_option(options, [&](const char* name, auto& member, const char* help) {
    if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) return;
    using Value = typename std::decay_t<decltype(member)>::value_type;
    const std::string apex(apex_name(name)),
        flags = flag_name(name) + (apex.empty() ? "" : "," + flag_name(apex));
    // A command that goes on with a run has the run's own as defaults, and does so in one mode.
    const bool goes_on = !only.empty(), is_precision = goes_on && std::string_view(name) == "precision";
    const std::string text = is_precision ? "a mode of `mantissa modes`" : help;
    const std::string shown = text + (goes_on ? "" : default_of(name));
    if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
      // CLI11 would refuse a negative seed, and take 010 for 8.
      const auto take = [&member](const std::string& word) { member = parse_number<Value>(word).value; };
      subcommand.add_option_function<std::string>(flags, take, shown)
          ->type_name(std::is_same_v<Value, double>    ? "FLOAT"
                      : std::is_same_v<Value, int64_t> ? "INT"
                                                       : "UINT")
          ->check(misfit<Value>, "");
    } else {
      CLI::Option* option = subcommand.add_option(flags, member, shown);
      if constexpr (!std::is_same_v<Value, std::string>) option->check(misfit<Value>, "");
      // "" stands for none in a configuration; on the command line it is a variable that was not set.
      if (std::string_view(name) == "weights" || std::string_view(name) == "output")
        option->check(names_a_file, "");
    }
  });
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
  return text.empty() ? "'' is no file; name one, or leave it out" : "";
}

}  // namespace mantissa::cli
