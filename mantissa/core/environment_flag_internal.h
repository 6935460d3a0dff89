#pragma once

namespace mantissa {

/// Returns true if the environment variable `name` is 1, empty or not set.
/// Errors: c10::ValueError if it is neither 0 nor 1; `off` is the text for the meaning of 0.
bool environment_flag(const char* name, const char* off);

}  // namespace mantissa
