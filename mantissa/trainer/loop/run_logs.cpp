#include <exception>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/error_message.h"
#include "mantissa/trainer/loop/keys_internal.h"
#include "mantissa/trainer/loop/run_logs_internal.h"

namespace mantissa {

RunLogs::RunLogs(std::vector<std::shared_ptr<Logger>> loggers)
    : has_loggers_(!loggers.empty()), loggers_(std::move(loggers)) {}

void RunLogs::begin_batch(bool makes_row) {
  end_row();  // sends it now, because the next row may come late
  makes_row_ = has_loggers_ && makes_row;
  batch_row_.emplace();
}

void RunLogs::end_batch(const Progress& progress) { add(*std::exchange(batch_row_, std::nullopt), progress); }

void RunLogs::abandon_batch() {
  batch_row_.reset();
  makes_row_ = false;
}

void RunLogs::add(const MetricValues& metrics, const Progress& progress) {
  for (const auto& [name, value] : metrics) check_metric_name("log_metrics", name);
  if (!has_loggers_ || metrics.empty()) return;
  if (batch_row_) {
    for (const auto& [name, value] : metrics) batch_row_->insert_or_assign(name, value);
    return;
  }
  const auto& [step, epoch] = std::pair(progress.now().steps, progress.now().epoch);
  if (row_.step != step || row_.epoch != epoch) end_row();
  if (row_.metrics.empty()) row_ = {{}, step, epoch, progress.skipped_steps().count_on_device()};
  for (const auto& [name, value] : metrics) row_.metrics.insert_or_assign(name, value);
}

void RunLogs::end_row() {
  if (row_.metrics.empty()) return;
  Row row = std::exchange(row_, {});
  // Values that the task logs under these names take precedence.
  row.metrics.emplace("epoch", static_cast<double>(row.epoch));
  row.metrics.emplace("skipped_steps", row.skipped_steps);
  each([&](Logger& logger) { logger.log_metrics(row.metrics, row.step); });
}

void RunLogs::save_to_disk() {
  each([](Logger& logger) { logger.save(); });
}

void RunLogs::finalize(const std::string& status) {
  end_row();
  each([&](Logger& logger) { logger.finalize(status); });
}

void RunLogs::save(StateDict& state) const {
  StateDict rows;
  for (const auto& [key, logger] : by_key())
    if (const auto logged = logger->rows()) rows.emplace(key, *logged);
  state.emplace("loggers", std::move(rows));
}

/// If a checkpoint has a logger's number of rows, rows after these are void; else the rows of later steps.
void RunLogs::load(const StateReader& state, Differences& /*differences*/) {
  const int64_t step = Progress::steps_in(state).to_count();
  const auto rows = state.find("loggers");
  const auto keyed = by_key();
  each([&](Logger& logger) {
    for (const auto& [key, known] : keyed) {
      if (known.get() != &logger) continue;
      const auto logged = rows ? rows->find(key) : std::nullopt;
      if (!logged) return logger.resume_from(step);
      return logger.resume_from(step, logged->to_count());
    }
  });
}

std::map<std::string, std::shared_ptr<Logger>> RunLogs::by_key() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::shared_ptr<Logger>> keyed;
  for (const auto& logger : loggers_) keyed.emplace(unused_key(keyed, logger->name()), logger);
  return keyed;
}

/// A logger that fails must neither end the training nor keep the others from their rows.
void RunLogs::each(const std::function<void(Logger&)>& call) {
  std::vector<std::shared_ptr<Logger>> loggers;
  {
    const std::lock_guard lock(mutex_);
    loggers = loggers_;
  }
  for (const auto& logger : loggers) {
    try {
      call(*logger);
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (std::erase(loggers_, logger) == 0) continue;  // another thread has warned of it
      }
      TORCH_WARN("the ", logger->name(),
                 " logger failed, and the run continues without it: ", message_of(std::current_exception()));
    }
  }
}

}  // namespace mantissa
