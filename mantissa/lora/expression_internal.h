#pragma once

#include <string>

namespace mantissa::lora {

/// Returns why `expression` is no regular expression that a file may give, or "". std::regex compiles by recursion, so that a
/// long or deeply nested one would overflow the stack.
std::string problem_of(const std::string& expression);

/// Whether all of `name` matches an expression without a problem, in a time that is polynomial in the length of both.
bool matches_whole(const std::string& name, const std::string& expression);

}  // namespace mantissa::lora
