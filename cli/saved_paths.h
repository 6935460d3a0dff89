#pragma once

#include <filesystem>

#include "cli/option_values.h"

namespace mantissa::cli {

struct FitOptions;

/// Checks that the data and the tokenizer of the run in `folder` are where its configuration has them, unless `flags` give
/// other places.
/// Errors: c10::Error that names the path, the configuration and the flag.
void check_saved_paths(const std::filesystem::path& folder, const OptionValues& flags,
                       const FitOptions& options);

/// Checks that the file or folder of a model behind a prefix, such as hf:, is where the configuration of the run in `folder`
/// has it. No flag of a command on a run gives another place.
/// Errors: c10::Error that names the path, the configuration and its key.
void check_saved_model(const std::filesystem::path& folder, const OptionValues& saved);

/// Checks that `--data` among `flags` is of the same kind as the data of the run in `folder`, whose options are `saved`.
/// Errors: c10::ValueError that names both.
void check_same_kind(const std::filesystem::path& folder, const OptionValues& flags,
                     const OptionValues& saved);

}  // namespace mantissa::cli
