#pragma once

#include <filesystem>

#include "mantissa/trainer/loggers/background_logger.h"

namespace mantissa {

/// Writes a TensorBoard event file into a folder: scalars; hyperparameters as a text and for the HParams
/// dashboard, whose session finalize() ends with success or failure. Look at the folder above with
/// `tensorboard --logdir`.
///
/// Each logger begins a file of its own: those of earlier runs in the folder stay, and TensorBoard shows them
/// as one run. After resume_from() it forgets their later steps. What was logged at the checkpoint's own step
/// after it was taken is there twice, with the same values: TensorBoard shows the newer one, and Python's
/// EventAccumulator gives both.
/// Numerics: scalars are float32, as TensorBoard's own writers have them: 1e300 becomes inf. CSVLogger and
///           JSONLinesLogger keep the double.
/// Errors:   those of BackgroundLogger and EventFileWriter.
/// Source:   docs/loggers.md; io/event_file.h.
class TensorBoardLogger final : public BackgroundLogger {
 public:
  explicit TensorBoardLogger(const std::filesystem::path& folder, const BackgroundOptions& options = {});
};

}  // namespace mantissa
