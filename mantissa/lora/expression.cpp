#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>

#include <c10/util/StringUtil.h>

#include "mantissa/lora/expression_internal.h"

namespace mantissa::lora {
namespace {

constexpr size_t kMaxLength = 1024, kMaxParentheses = 64;

std::regex compiled(const std::string& expression) {
#ifdef __GLIBCXX__
  // Breadth first, because libstdc++'s other way of matching tries all ways of `(.*)*x`. It knows no back-references.
  return std::regex(expression, std::regex::ECMAScript | std::regex_constants::__polynomial);
#else
  return std::regex(expression);
#endif
}

/// Returns an expression that has been compiled already if it was used lately, since each expression is matched against
/// the names of all layers. A counted repetition such as a{999} can take megabytes, so that it is not kept.
std::shared_ptr<const std::regex> kept(const std::string& expression) {
  constexpr size_t kMaxKept = 1024;
  thread_local std::map<std::string, std::shared_ptr<const std::regex>> expressions;
  if (const auto found = expressions.find(expression); found != expressions.end()) return found->second;
  auto made = std::make_shared<const std::regex>(compiled(expression));
  if (expression.find('{') != std::string::npos) return made;
  if (expressions.size() == kMaxKept) expressions.clear();
  return expressions[expression] = std::move(made);
}

}  // namespace

std::string problem_of(const std::string& expression) {
  if (expression.size() > kMaxLength)
    return c10::str("it has ", expression.size(), " characters; at most ", kMaxLength, " are allowed");
  if (std::count(expression.begin(), expression.end(), '(') > static_cast<std::ptrdiff_t>(kMaxParentheses))
    return c10::str("it has more than ", kMaxParentheses, " parentheses");
  try {
    static_cast<void>(compiled(expression));
  } catch (const std::regex_error& error) {
    return error.what();
  }
  return "";
}

bool matches_whole(const std::string& name, const std::string& expression) {
  return std::regex_match(name, *kept(expression));
}

}  // namespace mantissa::lora
