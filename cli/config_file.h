#pragma once

#include <filesystem>
#include <string>

#include "cli/option_values.h"

namespace mantissa::cli {

/// The options that a YAML text gives. `file` only names it in errors.
/// Errors: c10::ValueError naming file, line, key and cure for an unknown key or a value that does not parse.
OptionValues parse_yaml(const std::string& text, const std::string& file);
/// Errors: those of parse_yaml(); c10::Error naming the file if it cannot be read.
OptionValues read_yaml(const std::filesystem::path& file);
/// What parse_yaml() reads back as the same options.
std::string to_yaml(const OptionValues& options);

}  // namespace mantissa::cli
