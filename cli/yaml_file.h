#pragma once

#include <filesystem>
#include <string>
#include <yaml-cpp/yaml.h>

namespace mantissa::cli {

/// What stands in a file. `flag` is the option that named it.
/// Errors: c10::Error if it cannot be read.
std::string read_text(const std::filesystem::path& file, const char* flag);

/// The one document of a YAML text, null if it is empty. `file` only names it in errors.
/// Errors: c10::ValueError with that name and the line if it is no YAML or several.
YAML::Node parse_document(const std::string& text, const std::string& file);

}  // namespace mantissa::cli
