#pragma once

#include <filesystem>
#include <string>

#include "cli/option_values.h"

namespace mantissa::cli {

/// Parses the options of a YAML text. `file` only names the text in errors.
/// Errors: c10::ValueError that names file, line, key and remedy, for an unknown key or a value that cannot
///         be parsed.
OptionValues parse_yaml(const std::string& text, const std::string& file);
/// Errors: those of parse_yaml(); c10::Error that names the file if it cannot be read.
OptionValues read_yaml(const std::filesystem::path& file);
/// Returns a text that parse_yaml() reads as the same options.
std::string to_yaml(const OptionValues& options);

}  // namespace mantissa::cli
