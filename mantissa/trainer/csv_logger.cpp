#include "mantissa/trainer/csv_logger.h"

#include <fmt/format.h>
#include <set>

#include "mantissa/io/atomic_file.h"

namespace mantissa {

void CsvLogger::on_fit_start(Trainer& /*trainer*/, const FitPlan& /*plan*/) {
  rows_.clear();
  skipped_ = 0;
  write();  // a file that cannot be written is found now, not after the first epoch
}

void CsvLogger::on_train_batch_end(Trainer& /*trainer*/, const TrainBatch& batch) {
  skipped_ += batch.step.skipped;
}

void CsvLogger::on_epoch_end(Trainer& /*trainer*/, int64_t epoch, int64_t global_step,
                             const Metrics& metrics) {
  rows_.push_back({epoch, global_step, skipped_, metrics});
  write();
}

void CsvLogger::write() const {
  std::set<std::string> names;
  for (const Row& row : rows_)
    for (const auto& [name, value] : row.metrics) names.insert(name);

  std::string text = "epoch,step,skipped_steps";
  for (const std::string& name : names) text += "," + name;
  text += "\n";
  for (const Row& row : rows_) {
    text += fmt::format("{},{},{}", row.epoch, row.step, row.skipped_steps);
    for (const std::string& name : names) {
      const auto found = row.metrics.find(name);
      text += found == row.metrics.end() ? "," : fmt::format(",{}", found->second);
    }
    text += "\n";
  }
  write_file_atomically(file_, text);
}

}  // namespace mantissa
