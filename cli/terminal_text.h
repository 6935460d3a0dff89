#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mantissa::cli {

/// Returns a text such as "1.5 GiB".
std::string human_bytes(uint64_t bytes);

/// Returns a file's text without control characters, safe to print on a terminal.
std::string printable(std::string text);

/// True if `name` matches one of the shell patterns (`*`, `?`, `[a-z]`; a dot is an ordinary character).
bool matches_any(const std::vector<std::string>& globs, const std::string& name);

/// Errors: c10::ValueError for a pattern that matches none of the names, which is most likely a typing error.
void check_globs(const char* flag, const std::vector<std::string>& globs,
                 const std::vector<std::string>& names);

}  // namespace mantissa::cli
