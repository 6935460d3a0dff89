#pragma once

#include <filesystem>

#include "mantissa/trainer/loggers/background_logger.h"

namespace mantissa {

/// Writes `metrics.csv` into a folder, with one line for each call of log_metrics(). The columns are epoch,
/// step and skipped_steps, if they are logged, and then every other metric by name. Hyperparameters go to
/// `hparams.yaml`, as in Lightning's logger of this name.
///
/// A metric that first appears later gets a column: the file is rewritten under another name and renamed,
/// once for all rows of a flush. Otherwise the file is only appended to, and so is an existing file.
/// Numerics: shortest decimals that read back as the same double; "nan", "inf", "-inf".
/// Memory:   the rows of a flush, not those of the run.
/// Errors:   those of BackgroundLogger and AppendFile; c10::ValueError for a `metrics.csv` that no CSVLogger
///           wrote.
/// Source:   docs/loggers.md.
class CSVLogger final : public BackgroundLogger {
 public:
  explicit CSVLogger(const std::filesystem::path& folder, const BackgroundOptions& options = {});
};

}  // namespace mantissa
