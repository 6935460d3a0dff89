#include "cli/option.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <type_traits>

#include <c10/util/Exception.h>

#include "cli/option_parsers.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

/// Formats a bound for an error: 1000000 becomes 1e6, 1048576 stays as it is, and 1e-06 becomes 1e-6.
std::string format_bound(double number) {
  std::string text = fmt::format("{:.10g}", number);
  for (const char* const padding : {"e+", "e-0"})
    if (const size_t at = text.find(padding); at != std::string::npos)
      return text.erase(at + std::string_view(padding).size() - 1, 1);
  const size_t digits = text.find_last_not_of('0') + 1, zeros = text.size() - digits;
  return zeros < 6 ? text : fmt::format("{}e{}", text.substr(0, digits), zeros);
}

}  // namespace

const Option* find_option(std::string_view name) {
  const auto& all = options();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Option& option) { return option.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::string flag_of(std::string_view name) {
  std::string flag(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return "--" + flag;
}

const char* group_name(Group group) {
  constexpr std::array kNames{"Data",     "Images", "Model",   "Precision",  "Optimizer",
                              "Schedule", "Limits", "Logging", "Checkpoints"};
  return kNames.at(static_cast<size_t>(group));
}

const OptionValue& default_of(const Option& option, bool reads_text) {
  return reads_text && option.default_for_text ? *option.default_for_text : option.default_value;
}

std::string cure_of(const Range& range) {
  const std::string meaning = range.low_means;
  const std::string from =
      "choose " + format_bound(range.low) + (meaning.empty() ? "" : " (" + meaning + ")");
  if (range.high == kLargest) return from + " or more";
  if (range.high == kBelowOne) return from + " or more, below 1";
  return from + " to " + format_bound(range.high);
}

void check_value(const Option& option, const OptionValue& value) {
  const std::string flag = flag_of(option.name);
  if (const auto* const text = std::get_if<std::string>(&value)) {
    if (option.choices.empty() || (option.may_be_empty && text->empty())) return;
    if (option.is_list) {
      parse_list(flag, *text, option.choices);
      return;
    }
    const auto& prefixes = option.choice_prefixes;
    if (std::any_of(prefixes.begin(), prefixes.end(), [&](const auto& p) { return text->starts_with(p); }))
      return;
    check_choice(flag, *text, option.choices);
  }
  if (!option.range) return;
  visit_kind(value.index(), [&](auto* type) {
    using Value = std::remove_pointer_t<decltype(type)>;
    if constexpr (std::is_arithmetic_v<Value>) {
      const auto number = static_cast<double>(std::get<Value>(value));
      TORCH_CHECK_VALUE(number >= option.range->low && number <= option.range->high, flag, " ",
                        fmt::format("{}", std::get<Value>(value)), " is out of range; ",
                        cure_of(*option.range));
    }
  });
}

std::string with_flags(const std::string& message) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Option& option : options()) {
    // An option that a mode may decide (or_auto) is a member of PrecisionOptions, mostly of the same name.
    const std::string& in_library =
        option.in_library.empty() && option.to.or_auto ? option.name : option.in_library;
    if (!in_library.empty()) names.emplace_back(in_library, flag_of(option.name));
  }
  return with_names(message, names);
}

std::string option_meant(const std::string& name, const std::vector<std::string>& candidates) {
  const auto bare = [](std::string text) {
    std::replace(text.begin(), text.end(), '-', '_');
    return text.substr(std::min(text.find_first_not_of('_'), text.size()));
  };
  const std::string key = bare(name);
  for (const Option& option : options()) {
    const auto& others = option.known_as;
    if (std::find(others.begin(), others.end(), key) == others.end()) continue;
    const auto meant = std::find_if(candidates.begin(), candidates.end(), [&](const std::string& candidate) {
      return bare(candidate) == option.name;
    });
    if (meant != candidates.end()) return *meant;
  }
  return nearest_name(name, candidates);
}

}  // namespace mantissa::cli
