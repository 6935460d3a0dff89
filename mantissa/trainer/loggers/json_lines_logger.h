#pragma once

#include <filesystem>

#include "mantissa/trainer/loggers/background_logger.h"

namespace mantissa {

/// Writes `metrics.jsonl` into a folder, with one JSON object per line:
/// {"step":10,"wall_time":1763743.5,"train_loss":0.25} for each call of log_metrics(),
/// {"hyperparams":{...},"wall_time":...}, and {"status":"success","wall_time":...} at the end of a run. The
/// file is only appended to, and so is an existing file.
///
/// Numerics: shortest decimals that read back as the same double. JSON has no nan and inf, so they are the
///           strings "NaN", "Infinity" and "-Infinity", as in protobuf's JSON; Python's float() reads all
///           three.
/// Errors:   those of BackgroundLogger and AppendFile.
/// Source:   docs/loggers.md; RFC 8259; https://jsonlines.org.
class JSONLinesLogger final : public BackgroundLogger {
 public:
  explicit JSONLinesLogger(const std::filesystem::path& folder, const BackgroundOptions& options = {});
};

}  // namespace mantissa
