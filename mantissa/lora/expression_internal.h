#pragma once

#include <string>

namespace mantissa::lora {

/// Returns why `expression` is no regular expression that a file may give, or "".
std::string problem_of(const std::string& expression);

/// Whether all of `name` matches, as `re.fullmatch()` says in Python, with which PEFT compares names. A name that is not
/// UTF-8 matches nothing.
/// Errors: c10::ValueError if the expression has a problem, or would try too many ways to match.
bool matches_whole(const std::string& name, const std::string& expression);

}  // namespace mantissa::lora
