#include <algorithm>
#include <cstddef>
#include <map>
#include <regex>
#include <string>

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
  // A counted repetition such as a{999} can take megabytes, so it is not kept.
  if (expression.find('{') != std::string::npos) return std::regex_match(name, compiled(expression));
  // Each expression is matched against the names of all layers, so it is compiled once.
  constexpr size_t kMaxKept = 1024;
  thread_local std::map<std::string, std::regex> kept;
  auto found = kept.find(expression);
  if (found == kept.end()) {
    if (kept.size() == kMaxKept) kept.clear();
    found = kept.emplace(expression, compiled(expression)).first;
  }
  return std::regex_match(name, found->second);
}

}  // namespace mantissa::lora
