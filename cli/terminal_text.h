#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mantissa::cli {

/// "1.5 GiB"
std::string human_bytes(uint64_t bytes);

/// A text of a file, fit for a terminal: no control characters.
std::string printable(std::string text);

/// Whether one of the shell's patterns (`*`, `?`, `[a-z]`; a dot is a character as any other) is `name`.
bool matches_any(const std::vector<std::string>& globs, const std::string& name);

/// Errors: c10::ValueError for a pattern that is none of the names: most likely a typing error.
void check_globs(const char* flag, const std::vector<std::string>& globs,
                 const std::vector<std::string>& names);

}  // namespace mantissa::cli
