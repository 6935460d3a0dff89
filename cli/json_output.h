#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace mantissa::cli {

using Json = nlohmann::ordered_json;

/// Returns `json` as text. JSON must be valid UTF-8, but a path in it need not be: invalid bytes become
/// U+FFFD.
std::string dump(const Json& json);

/// Writes `json` to `file`, or to standard output if `file` is "-". If `file` is empty, writes nothing.
void write_json(const Json& json, const std::string& file);

}  // namespace mantissa::cli
