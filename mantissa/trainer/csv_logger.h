#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mantissa/trainer/callback.h"

namespace mantissa {

/// Writes `metrics.csv`: one row an epoch, columns epoch (from 0), step, skipped_steps (both since the
/// run began) and every metric seen.
///
/// The file is whole at any moment: it is rewritten under another name after each epoch and renamed, so that
/// a killed run keeps all finished epochs, and a metric that appears late gets its column.
/// Errors: c10::Error
/// naming the file when it cannot be written.
class CsvLogger final : public Callback {
 public:
  explicit CsvLogger(std::filesystem::path file) : file_(std::move(file)) {}
  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;
  void on_epoch_end(Trainer& trainer, int64_t epoch, int64_t global_step, const Metrics& metrics) override;

 private:
  struct Row {
    int64_t epoch, step, skipped_steps;
    Metrics metrics;
  };
  void write() const;

  std::filesystem::path file_;
  int64_t skipped_ = 0;
  std::vector<Row> rows_;
};

}  // namespace mantissa
