#pragma once

namespace mantissa {

/// Whether the environment variable `name` is 1, empty or not set.
/// Errors: c10::ValueError if it is neither 0 nor 1; `off` says what 0 means.
bool environment_flag(const char* name, const char* off);

}  // namespace mantissa
