#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mantissa::cli {

/// A file that a command writes.
struct Output {
  std::filesystem::path path;  ///< "" and "-": none
  bool overwrite = true;       ///< whether it may replace a file that is neither an input nor a run's
  bool makes_folder = false;   ///< whether the command makes the file's folder if there is none
};

/// Checks, before a command does its work, that its outputs can be written at the end, by writing another file beside
/// each. They must be different files, and replace neither what the command reads nor what a run has written. A symbolic
/// link is followed. `inputs` are files, and folders with all that lies in them; "" is none. `run` is the folder of a run
/// that the command is about to make, or empty.
/// Errors: UsageError for an output that replaces an input, another output or a file of a run; c10::Error for one that
///         exists already or cannot be written. Both name the file, the reason and the cure.
void check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs,
                   const std::filesystem::path& run = {});

}  // namespace mantissa::cli
