#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "cli/fit_options.h"
#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/loggers/logger.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa::cli {

/// Without callbacks and loggers, which write into a run's folder.
/// Errors: UsageError for words that the Trainer refuses.
TrainerOptions trainer_options(const FitOptions& options);

/// Those of `--logger`, writing into `folder`.
std::vector<std::shared_ptr<Logger>> make_loggers(const FitOptions& options,
                                                  const std::filesystem::path& folder);

/// Checkpoints in `folder`, early stopping, the weights' moving average and those of `--callbacks`.
std::vector<std::shared_ptr<Callback>> make_callbacks(const FitOptions& options,
                                                      const std::filesystem::path& folder);

}  // namespace mantissa::cli
