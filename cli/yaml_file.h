#pragma once

#include <filesystem>
#include <yaml-cpp/yaml.h>

namespace mantissa::cli {

/// The one document of a YAML file, null if it is empty. `flag` is the option that named the file.
/// Errors: c10::Error if it cannot be read; c10::ValueError with its name and line if it is no YAML or
/// several.
YAML::Node load_yaml(const std::filesystem::path& file, const char* flag);

}  // namespace mantissa::cli
