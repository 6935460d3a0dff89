#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace mantissa {

/// Reads a whole file to the memory that `memory_for` returns for its size. `kind` names the file in errors: "text file".
/// Errors: c10::Error that names the file and the reason if it cannot be read; c10::ValueError that names it if it is empty.
void read_file(const std::filesystem::path& path, const std::string& kind,
               const std::function<char*(int64_t size)>& memory_for);

/// Returns the bytes of a file.
std::string read_file(const std::filesystem::path& path, const std::string& kind);

}  // namespace mantissa
