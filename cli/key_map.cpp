#include "cli/key_map.h"

#include <fmt/format.h>
#include <set>
#include <string_view>

#include <c10/util/Exception.h>

#include "cli/text.h"
#include "cli/yaml_file.h"

namespace mantissa::cli {
namespace {

/// std::regex takes some hundred bytes of stack a character.
constexpr size_t kLongestName = 4096;

RenameRule make_rule(const std::string& where, const std::string& pattern,
                     const std::optional<std::string>& replacement, bool must_match) {
  TORCH_CHECK_VALUE(!pattern.empty(), where, "the pattern is empty; write one, such as '^model\\.'");
  try {
    return {pattern, std::regex(pattern), replacement, must_match};
  } catch (const std::regex_error& error) {
    TORCH_CHECK_VALUE(false, where, "'", pattern, "' is no regular expression (", error.what(),
                      "); put a backslash before characters that stand for themselves");
  }
  return {};
}

}  // namespace

RenameRule parse_rename(const std::string& text) {
  const size_t arrow = text.find("=>");
  TORCH_CHECK_VALUE(arrow != std::string::npos, "--rename '", text,
                    "' has no =>; write PATTERN=>REPLACEMENT, such as '^model\\.=>'");
  return make_rule("--rename: ", text.substr(0, arrow), text.substr(arrow + 2), true);
}

RenameRule strip_prefix_rule(const std::string& prefix) {
  std::string pattern = "^";
  for (const char c : prefix) {
    if (std::string_view("^$\\.*+?()[]{}|").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  RenameRule rule = make_rule("--strip-prefix: ", pattern, "", true);
  rule.text = prefix;
  return rule;
}

RenameRule add_prefix_rule(const std::string& prefix) {
  std::string replacement;
  for (const char c : prefix) replacement += c == '$' ? "$$" : std::string(1, c);
  return make_rule("--add-prefix: ", "^", replacement, false);
}

std::vector<RenameRule> read_key_map(const std::filesystem::path& file) {
  const YAML::Node root = parse_document(read_text(file, "--key-map"), file.string());
  TORCH_CHECK_VALUE(
      root.IsMap(), file.string(),
      ": must be a map, `PATTERN: REPLACEMENT` a line, or `PATTERN: null` to leave tensors out");
  std::vector<RenameRule> rules;
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const std::string where = fmt::format("{}:{}: ", file.string(), entry.first.Mark().line + 1);
    const YAML::Node &pattern = entry.first, &replacement = entry.second;
    TORCH_CHECK_VALUE(pattern.IsScalar() && (replacement.IsScalar() || replacement.IsNull()), where,
                      "a rule must be one pattern and one replacement; write `PATTERN: REPLACEMENT`");
    TORCH_CHECK_VALUE(seen.insert(pattern.Scalar()).second, where, "the pattern '", pattern.Scalar(),
                      "' stands here a second time; keep one");
    // A map for a family of models need not fit each of them in every rule.
    rules.push_back(make_rule(where, pattern.Scalar(),
                              replacement.IsNull() ? std::nullopt : std::optional(replacement.Scalar()),
                              false));
  }
  return rules;
}

std::map<std::string, std::string> rename_all(const std::vector<std::string>& names,
                                              const std::vector<RenameRule>& rules) {
  std::map<std::string, std::string> renamed, source_of;
  std::vector<bool> matched(rules.size());
  for (const std::string& name : names) {
    std::string current = name;
    bool left_out = false;
    for (size_t i = 0; i < rules.size() && !left_out; ++i) {
      TORCH_CHECK_VALUE(current.size() <= kLongestName, "tensor '", printable(current.substr(0, 100)),
                        "...': a name of ", current.size(), " characters is over the limit of ", kLongestName,
                        " for renaming; leave the rules out");
      if (!std::regex_search(current, rules[i].pattern)) continue;
      matched[i] = true;
      left_out = !rules[i].replacement;
      if (!left_out) current = std::regex_replace(current, rules[i].pattern, *rules[i].replacement);
    }
    if (left_out) continue;
    TORCH_CHECK_VALUE(!current.empty(), "tensor '", printable(name),
                      "' would have no name after renaming; correct the rules");
    const auto [other, is_new] = source_of.emplace(current, name);
    TORCH_CHECK_VALUE(is_new, "tensors '", printable(other->second), "' and '", printable(name),
                      "' would both be named '", printable(current), "'; correct the rules");
    renamed.emplace(name, current);
  }
  for (size_t i = 0; i < rules.size(); ++i)
    TORCH_CHECK_VALUE(matched[i] || !rules[i].must_match, "the pattern '", rules[i].text,
                      "' is in none of the ", names.size(),
                      " names; `mantissa inspect --no-values` lists them");
  return renamed;
}

}  // namespace mantissa::cli
