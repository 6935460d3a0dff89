#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "mantissa/trainer/callback.h"

namespace mantissa {

/// Shows the progress of a fit. On a terminal it is one line, redrawn at most ten times a second. In a pipe
/// or a file it is one plain line per epoch, so that logs stay readable. Of several processes that train
/// together, only the first one shows it.
///
/// Sync:   reads the loss from the device once per redraw, never per step.
/// Errors: none; output that cannot be written is lost, and training continues (a program that writes into
///         pipes must ignore SIGPIPE for that).
class ProgressBar final : public Callback {
 public:
  enum class Style { kAuto, kTerminal, kPlain };

  /// `out` is borrowed. kAuto: kTerminal if `out` is a terminal, else kPlain.
  explicit ProgressBar(std::FILE* out = stderr, Style style = Style::kAuto);

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_epoch_start(Trainer& trainer, int64_t epoch) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;
  void on_epoch_end(Trainer& trainer, int64_t epoch, int64_t global_step, const Metrics& metrics) override;
  void on_exception(Trainer& trainer, const std::exception_ptr& exception) override;

 private:
  using Clock = std::chrono::steady_clock;
  std::string epoch_label(int64_t epoch) const;
  void clear_line();
  void show(const std::string& text);

  std::FILE* out_;
  bool terminal_;
  bool is_shown_ = true;
  bool line_open_ = false;  ///< whether the terminal's current line has a bar
  FitPlan plan_;
  int64_t batches_ = 0;
  SkippedSteps skipped_;  ///< of this epoch
  Clock::time_point epoch_start_, last_draw_;
};

}  // namespace mantissa
