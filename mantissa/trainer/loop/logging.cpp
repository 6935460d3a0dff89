// Rows for the loggers.
#include <exception>
#include <utility>

#include "mantissa/core/error_message.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

/// One that fails must neither end the training nor keep the others from their rows.
void Trainer::each_logger(const std::function<void(Logger&)>& call) {
  std::vector<std::shared_ptr<Logger>> loggers;
  {
    const std::lock_guard lock(loggers_mutex_);
    loggers = loggers_;
  }
  for (const auto& logger : loggers) {
    try {
      call(*logger);
    } catch (...) {
      {
        const std::lock_guard lock(loggers_mutex_);
        if (std::erase(loggers_, logger) == 0) continue;  // another thread has told of it
      }
      TORCH_WARN("the ", logger->name(),
                 " logger failed, and the run goes on without it: ", message_of(std::current_exception()));
    }
  }
}

bool Trainer::step_makes_row(bool ends_window) const {
  const int64_t every = options_.log_every_n_steps;
  if (options_.loggers.empty() || every == 0) return false;
  return is_automatic_ ? ends_window && (progress_.steps + 1) % every == 0
                       : (progress_.total_batches + 1) % every == 0;
}

void Trainer::note_step_value(const std::string& name, const MetricValue& value) {
  if (batch_row_) batch_row_->insert_or_assign(name + "_step", value);
}

void Trainer::log_metrics(const MetricValues& metrics) {
  for (const auto& [name, value] : metrics) check_metric_name("log_metrics", name);
  if (options_.loggers.empty() || metrics.empty()) return;
  if (batch_row_) {
    for (const auto& [name, value] : metrics) batch_row_->insert_or_assign(name, value);
    return;
  }
  if (row_.step != progress_.steps || row_.epoch != progress_.epoch) end_row();
  if (row_.metrics.empty()) row_ = {{}, progress_.steps, progress_.epoch, skipped_steps_.count_on_device()};
  for (const auto& [name, value] : metrics) row_.metrics.insert_or_assign(name, value);
}

void Trainer::end_row() {
  if (row_.metrics.empty()) return;
  Row row = std::exchange(row_, {});
  // What the task logs under these names is its own.
  row.metrics.emplace("epoch", static_cast<double>(row.epoch));
  row.metrics.emplace("skipped_steps", row.skipped_steps);
  each_logger([&](Logger& logger) { logger.log_metrics(row.metrics, row.step); });
}

void Trainer::save_logs() {
  each_logger([](Logger& logger) { logger.save(); });
}

void Trainer::end_logs(const std::string& status) {
  batch_row_.reset();
  should_log_ = false;
  end_row();
  if (stage_ == Stage::kFit) {
    each_logger([&](Logger& logger) { logger.finalize(status); });
  } else {
    save_logs();
  }
}

}  // namespace mantissa
