#pragma once

#include <filesystem>

#include "mantissa/trainer/loggers/background_logger.h"

namespace mantissa {

/// Writes a TensorBoard event file into a folder: the scalars, and the hyperparameters both as a text and for
/// the HParams dashboard, whose session finalize() ends with success or failure. View the parent folder with
/// `tensorboard --logdir`.
///
/// Each logger begins its own file. Files of earlier runs in the folder stay, and TensorBoard shows them as
/// one run. After resume_from() TensorBoard drops their later steps. Values logged at the checkpoint's own
/// step after the checkpoint appear twice, unchanged: TensorBoard shows the newer one, and Python's
/// EventAccumulator returns both.
/// Numerics: scalars are float32, as in TensorBoard's own writers, so 1e300 becomes inf. CSVLogger and
///           JSONLinesLogger keep the double.
/// Errors:   those of BackgroundLogger and EventFileWriter.
/// Source:   docs/loggers.md; io/event_file.h.
class TensorBoardLogger final : public BackgroundLogger {
 public:
  explicit TensorBoardLogger(const std::filesystem::path& folder, const BackgroundOptions& options = {});
};

}  // namespace mantissa
