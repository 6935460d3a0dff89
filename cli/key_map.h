#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mantissa::cli {

/// A compiled pattern of PCRE2.
class Regex;

/// One step from old names to new ones.
struct RenameRule {
  std::string text;  ///< the pattern, as it was given
  std::shared_ptr<const Regex> pattern;
  /// With $1 for the pattern's first group and so on; nothing: tensors that the pattern finds are left out.
  std::optional<std::string> replacement;
  bool must_match = true;  ///< whether it is an error if no name has the pattern
};

/// `PATTERN=>REPLACEMENT`: a Perl-compatible regular expression, and what every part of a name that it finds
/// becomes.
/// Errors: c10::ValueError naming the text and what is wrong.
RenameRule parse_rename(const std::string& text);

/// Rules that take a prefix from the names that have it, and put one before every name.
RenameRule strip_prefix_rule(const std::string& prefix);
RenameRule add_prefix_rule(const std::string& prefix);

/// The rules of a YAML file, a map from patterns to replacements in their order; a replacement of `null`
/// leaves the tensors out.
/// Errors: c10::ValueError with the file's name and line; those of read_text() and parse_document().
std::vector<RenameRule> read_key_map(const std::filesystem::path& file);

/// The new name of each name that is not left out: every rule in its order, on what the rules before it made.
/// Errors: c10::ValueError for a rule that must match and does not, a pattern that takes too long, two names
///         that become one, a name that becomes empty or too long.
std::map<std::string, std::string> rename_all(const std::vector<std::string>& names,
                                              const std::vector<RenameRule>& rules);

}  // namespace mantissa::cli
