#pragma once

#include <filesystem>

#include "mantissa/trainer/loggers/background_logger.h"

namespace mantissa {

/// Writes `metrics.csv` into a folder: a line for each call of log_metrics(), columns epoch, step and
/// skipped_steps if they are logged, then every other metric by name; and `hparams.yaml`, as Lightning's
/// logger of this name does.
///
/// A metric that appears late gets its column: the file is then rewritten under another name and renamed,
/// once for all rows of a flush; otherwise it is only appended to. A file that is there is gone on with.
/// Numerics: shortest decimals that read back as the same double; "nan", "inf", "-inf".
/// Memory:   the rows of a flush, not those of the run.
/// Errors:   those of BackgroundLogger and AppendFile; c10::ValueError for a `metrics.csv` that is not of
///           this logger.
/// Source:   docs/loggers.md.
class CSVLogger final : public BackgroundLogger {
 public:
  explicit CSVLogger(const std::filesystem::path& folder, const BackgroundOptions& options = {});
};

}  // namespace mantissa
