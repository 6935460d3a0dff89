#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace mantissa {

/// Which modules of a model an adapter belongs to, as PEFT's target_modules says it: by the ends of their names,
/// by a regular expression, or all linear layers.
///
///     ModuleNames a = {"qkv", "projection"};             // "blocks.0.qkv", "blocks.1.projection", "qkv", ...
///     ModuleNames b = "blocks\\.[01]\\.(qkv|expand)";    // an expression for the whole name
///     ModuleNames c = "all-linear";
///
/// An expression is Perl-compatible (PCRE2). What Python's `re` has, too, matches as `re.fullmatch()` does in PEFT.
class ModuleNames {
 public:
  /// No module.
  ModuleNames() = default;
  /// Errors: c10::ValueError for an empty or invalid expression.
  ModuleNames(std::string expression);  // NOLINT(google-explicit-constructor): options read as in PEFT
  ModuleNames(const char* expression) : ModuleNames(std::string(expression)) {}  // NOLINT
  ModuleNames(std::vector<std::string> ends) : ends_(std::move(ends)) {}         // NOLINT
  ModuleNames(std::initializer_list<std::string> ends) : ends_(ends) {}          // NOLINT

  bool empty() const { return ends_.empty() && expression_.empty(); }
  bool is_all_linear() const { return expression_ == "all-linear"; }
  /// Whether the module `name` is meant. All-linear means every module here; the caller knows what is linear.
  /// Errors: c10::ValueError for an expression that would try too many ways to match `name`, such as "(a|a)*[bc]".
  bool matches(const std::string& name) const;
  /// The ends of names; empty for an expression.
  const std::vector<std::string>& ends() const { return ends_; }
  /// The expression, or "all-linear"; empty for ends of names.
  const std::string& expression() const { return expression_; }
  /// Returns the form that an error should show.
  std::string text() const;

  bool operator==(const ModuleNames&) const = default;

 private:
  std::vector<std::string> ends_;
  std::string expression_;
};

/// Whether `name` equals `end` or ends with "." and `end`.
bool ends_with_name(const std::string& name, const std::string& end);

}  // namespace mantissa
