#include <algorithm>
#include <cstddef>
#include <regex>

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
  return std::regex_match(name, compiled(expression));
}

}  // namespace mantissa::lora
