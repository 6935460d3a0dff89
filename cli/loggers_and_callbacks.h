#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "cli/fit_options.h"
#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/loggers/logger.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa::cli {

/// Returns the Trainer's options without callbacks and loggers, which need a run's folder.
/// Errors: UsageError for options that the Trainer refuses.
TrainerOptions trainer_options(const FitOptions& options);

/// Makes the loggers of `--logger`, which write into `folder`.
std::vector<std::shared_ptr<Logger>> make_loggers(const FitOptions& options,
                                                  const std::filesystem::path& folder);

/// Makes the callbacks that save checkpoints in `folder`, stop early and average the weights, if the options
/// ask for them, and the callbacks of `--callbacks`.
std::vector<std::shared_ptr<Callback>> make_callbacks(const FitOptions& options,
                                                      const std::filesystem::path& folder);

}  // namespace mantissa::cli
