#pragma once

#include <filesystem>
#include <string>
#include <yaml-cpp/yaml.h>

namespace mantissa::cli {

/// Returns the content of a file. `flag` is the option that named it.
/// Errors: c10::Error if it cannot be read.
std::string read_text(const std::filesystem::path& file, const char* flag);

/// Parses a YAML text of one document; the node is null if it is empty. `file` only names the text in errors.
/// Errors: c10::ValueError with that name and the line if the text is not YAML or has several documents.
YAML::Node parse_document(const std::string& text, const std::string& file);

}  // namespace mantissa::cli
