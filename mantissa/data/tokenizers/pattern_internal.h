#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace mantissa::tokenizers {

/// A regular expression that cuts text into pieces, written for Oniguruma, which the `tokenizers` package uses. It has
/// the meaning that it has there: the white space and the letters and numbers of Unicode 16.
///
/// Threads: several threads may use one pattern at once.
class Pattern {
 public:
  enum class Dialect { kOniguruma, kPcre2 };
  /// Errors: c10::ValueError that begins with `where`, for an expression that is wrong or that means something else in
  ///         PCRE2.
  Pattern(const std::string& expression, const std::string& where, Dialect dialect = Dialect::kOniguruma);

  /// Calls `visit` with every match and every piece between two matches, in order. `text` must be UTF-8.
  /// Errors: c10::Error if the matches take too many steps.
  void cut(std::string_view text, const std::function<void(std::string_view piece)>& visit) const;
  /// True if the expression matches at the beginning of `text`.
  bool begins(std::string_view text) const;

 private:
  std::shared_ptr<const void> code_;
};

/// Returns `expression` with the meaning that it has in Oniguruma, for PCRE2.
/// Errors: those of Pattern.
std::string for_pcre2(const std::string& expression, const std::string& where);

}  // namespace mantissa::tokenizers
