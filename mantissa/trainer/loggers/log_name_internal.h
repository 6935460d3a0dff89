#pragma once

#include <string>

namespace mantissa {

bool is_utf8(const std::string& text);

/// Errors: c10::ValueError, with `function` in its message, for a name that is empty, is not UTF-8 or has
///         control characters.
void check_log_name(const char* function, const std::string& name);

}  // namespace mantissa
