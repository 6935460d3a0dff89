#include "cli/key_map.h"

#include <fmt/format.h>
#include <set>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "cli/errors.h"
#include "cli/terminal_text.h"
#include "cli/yaml_file.h"
#include "mantissa/core/pcre2_internal.h"

namespace mantissa::cli {
namespace {

constexpr size_t kLongestName = 65536;

}  // namespace

class Regex {
 public:
  /// Errors: c10::ValueError that begins with `where` if `pattern` is not a regular expression.
  Regex(const std::string& where, const std::string& pattern) : pattern_(pattern) {
    auto [code, problem, position] = pcre2::compile(pattern, PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C);
    TORCH_CHECK_VALUE(code, where, "'", printable(pattern), "' is not a regular expression (", problem,
                      ", at byte ", position + 1, "); put a backslash before literal characters");
    code_ = std::move(code);
  }

  /// Replaces each match of the pattern in `text` by `replacement`. Returns nothing if there is no match.
  /// Errors: UsageError for a replacement that cannot be parsed; c10::ValueError for a result longer than
  ///         kLongestName, and if PCRE2 gives up because the pattern would try too many ways to match.
  std::optional<std::string> replaced(const std::string& text, const std::string& replacement) const {
    constexpr uint32_t kOptions =
        PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_UNSET_EMPTY | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH;
    std::string result(text.size() + 256, '\0');
    PCRE2_SIZE size = 0;
    const auto substitute = [&] {
      size = result.size();
      return pcre2_substitute(code_.get(), pcre2::units_of(text), text.size(), 0, kOptions, nullptr, nullptr,
                              pcre2::units_of(replacement), replacement.size(),
                              reinterpret_cast<PCRE2_UCHAR*>(result.data()), &size);
    };
    int found = substitute();
    if (found == PCRE2_ERROR_NOMEMORY && size <= kLongestName) {
      result.resize(size);
      found = substitute();
    }
    const std::string reason = found == PCRE2_ERROR_NOMEMORY
                                   ? fmt::format("the new name would be longer than {} bytes", kLongestName)
                                   : pcre2::message_of(found);
    const bool has_bad_syntax = found == PCRE2_ERROR_BADREPLACEMENT || found == PCRE2_ERROR_BADREPESCAPE ||
                                found == PCRE2_ERROR_REPMISSINGBRACE ||
                                found == PCRE2_ERROR_BADSUBSTITUTION || found == PCRE2_ERROR_NOSUBSTRING;
    if (has_bad_syntax)
      throw UsageError("the replacement '" + printable(replacement) + "' of the pattern '" +
                       printable(pattern_) + "' is not valid (" + reason +
                       "); write $1 for the first group and $$ for a dollar");
    TORCH_CHECK_VALUE(found >= 0, "the pattern '", printable(pattern_), "' with the replacement '",
                      printable(replacement), "' fails for the name '", printable(text.substr(0, 100)),
                      text.size() > 100 ? "...' (" : "' (", reason, "); correct the rule");
    if (found == 0) return std::nullopt;
    result.resize(size);
    return result;
  }

 private:
  std::string pattern_;
  pcre2::Code code_;
};

namespace {

RenameRule make_rule(const std::string& where, const std::string& pattern,
                     const std::optional<std::string>& replacement, bool must_match) {
  TORCH_CHECK_VALUE(!pattern.empty(), where, "the pattern is empty; write one, such as '^model\\.'");
  return {pattern, std::make_shared<const Regex>(where, pattern), replacement, must_match};
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
      ": must be a map, one `PATTERN: REPLACEMENT` per line, or `PATTERN: null` to leave tensors out");
  std::vector<RenameRule> rules;
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const std::string where = fmt::format("{}:{}: ", file.string(), entry.first.Mark().line + 1);
    const YAML::Node &pattern = entry.first, &replacement = entry.second;
    TORCH_CHECK_VALUE(pattern.IsScalar() && (replacement.IsScalar() || replacement.IsNull()), where,
                      "a rule must be one pattern and one replacement; write `PATTERN: REPLACEMENT`");
    TORCH_CHECK_VALUE(seen.insert(pattern.Scalar()).second, where, "the pattern '", pattern.Scalar(),
                      "' is listed twice; keep one");
    // A map for a family of models may have rules that match no name in one of the models.
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
      const auto next = rules[i].pattern->replaced(current, rules[i].replacement.value_or(""));
      if (!next) continue;
      matched[i] = true;
      left_out = !rules[i].replacement;
      current = *next;
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
                      "' matches none of the ", names.size(),
                      " names; `mantissa inspect --no-values` lists them");
  return renamed;
}

}  // namespace mantissa::cli
