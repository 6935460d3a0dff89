#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mantissa/trainer/callbacks/divergence_monitor.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

/// A change of the precision mode in the middle of a training.
struct Fallback {
  std::string from, to;   ///< modes
  int64_t step = 0;       ///< optimizer steps when the run in `from` ended
  int64_t continues = 0;  ///< the step of the checkpoint from which `to` continues; 0: from the beginning
  std::string reason;     ///< DivergenceMonitor::reason()
};

struct FallbackResult {
  FitResult fit;          ///< of the last run
  std::string precision;  ///< its mode
  std::vector<Fallback> fallbacks;
};

struct FallbackOptions {
  /// The modes to try, in this order; see precision/registry.h.
  std::vector<std::string> precision = {};
  /// The folder of the runs' ModelCheckpoint.
  std::filesystem::path dirpath = "checkpoints";
  /// Continues a training that was killed: it begins with the mode of the newest checkpoint in `dirpath`.
  bool resume = false;
  DivergenceMonitorOptions monitor = {};
};

/// One run: makes the model, the task and a Trainer in the mode `precision`, with `monitor` and a ModelCheckpoint of
/// FallbackOptions::dirpath among its callbacks, and returns trainer.fit(task, train, val, ckpt_path).
using FallbackRun =
    std::function<FitResult(const std::string& precision, const std::shared_ptr<DivergenceMonitor>& monitor,
                            const std::filesystem::path& ckpt_path)>;

/// Trains in the first of several modes. When the run diverges, a run in the next mode continues from the last good
/// checkpoint, and a warning says so. A run in the last mode ends as it does. A run from the same checkpoint has the same
/// bits, so a killed training that is resumed ends like one that was not killed.
///
///     const auto result = mantissa::fit_with_fallback(
///         {.precision = {"16-mixed", "bf16-mixed", "32-true"}, .dirpath = "run"},
///         [&](const auto& precision, const auto& monitor, const auto& ckpt_path) {
///           mantissa::ClassificationTask task(make_model(), "adamw", {.lr = 3e-3});
///           auto saves = std::make_shared<mantissa::ModelCheckpoint>(mantissa::ModelCheckpointOptions{.dirpath = "run"});
///           mantissa::Trainer trainer({.precision = precision, .max_epochs = 5, .callbacks = {monitor, saves}});
///           return trainer.fit(task, train, &val, ckpt_path);
///         });
///
/// Errors:  c10::ValueError for no mode, an unknown one, or one that is named twice; for a folder that has checkpoints,
///          without `resume`; and if the run did not use `monitor`. What `run` throws ends the training.
/// Example: fallback_test.cpp, Fallbacks.ContinuesFromTheLastGoodStateInTheNextMode
FallbackResult fit_with_fallback(const FallbackOptions& options, const FallbackRun& run);

}  // namespace mantissa
