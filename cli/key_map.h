#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mantissa::cli {

/// A compiled PCRE2 pattern.
class Regex;

/// One step of renaming.
struct RenameRule {
  std::string text;  ///< the pattern, as given
  std::shared_ptr<const Regex> pattern;
  /// May use $1 for the pattern's first group and so on. If unset, tensors that match the pattern are left
  /// out.
  std::optional<std::string> replacement;
  bool must_match = true;  ///< whether it is an error if no name matches
};

/// Parses `PATTERN=>REPLACEMENT`: a Perl-compatible regular expression, and the replacement for each match in
/// a name.
/// Errors: c10::ValueError that names the text and the problem.
RenameRule parse_rename(const std::string& text);

/// Rules that remove a prefix from the names that have it, and that add a prefix to every name.
RenameRule strip_prefix_rule(const std::string& prefix);
RenameRule add_prefix_rule(const std::string& prefix);

/// Reads the rules of a YAML file: a map from patterns to replacements, in order. A replacement of `null`
/// leaves the matching tensors out.
/// Errors: c10::ValueError with the file's name and line; those of read_text() and parse_document().
std::vector<RenameRule> read_key_map(const std::filesystem::path& file);

/// Returns the new name of each name that is not left out. Every rule is applied in order, to the result of
/// the previous rules.
/// Errors: c10::ValueError for a rule that must match and does not, a pattern that takes too long, two names
///         that become equal, and a name that becomes empty or too long; UsageError for a replacement that
///         cannot be parsed.
std::map<std::string, std::string> rename_all(const std::vector<std::string>& names,
                                              const std::vector<RenameRule>& rules);

}  // namespace mantissa::cli
