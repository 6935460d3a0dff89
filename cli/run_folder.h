#pragma once

#include <filesystem>
#include <string>

namespace mantissa::cli {

/// Creates the folder for a run's files and returns it: `wanted`, or if that is empty the first free
/// `runs/<label>-<N>`.
/// Errors: c10::Error naming the folder if it cannot be made or written, or already holds a run.
std::filesystem::path make_run_folder(const std::string& wanted, const std::string& label);

/// Finds out before a long run whether `file` can be written at its end.
/// Errors: c10::Error naming the file, the reason and the cure.
void check_writable(const std::filesystem::path& file);

}  // namespace mantissa::cli
