// Measures the cost of a row on the training thread: a map of five metrics, one of them a tensor, is made and
// logged. Alternates (A B A B ...) with a logger without a thread, which formats, writes and flushes the row
// at once. Afterwards the rows in the files are counted.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/full.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/io/event_file.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/loggers/json_lines_logger.h"
#include "mantissa/trainer/loggers/tensorboard_logger.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

/// Rows between two flushes of a fast run. They are too few to wake a logger's thread early.
constexpr int64_t kRows = 200;

MetricValues metrics(const at::Tensor& loss) {
  return {{"epoch", 1}, {"train_loss", loss}, {"lr-AdamW", 1e-3}, {"loss_scale", 65536}, {"grad_norm", 0.75}};
}

int64_t rows_in(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  const auto lines = std::count(content.begin(), content.end(), '\n');
  if (file.extension() == ".csv") return lines - 1;
  if (file.extension() == ".jsonl") return lines;
  return static_cast<int64_t>(parse_events(content).events.size()) - 1;
}

template <typename Row>
double seconds_a_row(const Row& row) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < kRows; ++step) row(step);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRows;
}

template <typename... Loggers>
void log_metrics(benchmark::State& state) {
  std::string name = (fs::temp_directory_path() / "mantissa-logger-bench-XXXXXX").string();
  const fs::path folder = mkdtemp(name.data());
  std::vector<std::unique_ptr<Logger>> loggers;
  (loggers.push_back(std::make_unique<Loggers>(folder)), ...);
  std::ofstream at_once(folder / "at_once.csv");
  at_once << "step,epoch,grad_norm,loss_scale,lr-AdamW,train_loss\n";
  const at::Tensor loss = at::full({}, 0.5);

  std::vector<double> ours, ratios;
  for (auto _ : state) {
    const double queued = seconds_a_row([&](int64_t step) {
      for (const auto& logger : loggers) logger->log_metrics(metrics(loss), step);
    });
    for (const auto& logger : loggers) logger->save();
    const double written = seconds_a_row([&](int64_t step) {
      for (size_t i = 0; i < loggers.size(); ++i) {
        at_once << step;
        for (const auto& [metric, value] : metrics(loss)) at_once << ',' << value.read();
        at_once << '\n' << std::flush;
      }
    });
    ours.push_back(queued * 1e6);
    ratios.push_back(written / queued);
    state.SetIterationTime(queued);
  }
  loggers.clear();
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int64_t loggers_of_file = entry.path().filename() == "at_once.csv" ? sizeof...(Loggers) : 1;
    if (rows_in(entry.path()) != loggers_of_file * kRows * static_cast<int64_t>(state.iterations()))
      state.SkipWithError("rows are missing");
  }
  fs::remove_all(folder);
  state.counters["us_a_row"] = quantile(ours, 0.5);
  state.counters["us_a_row_p90"] = quantile(ours, 0.9);
  state.counters["written_at_once_to_queued"] = quantile(ratios, 0.5);
}

BENCHMARK(log_metrics<CSVLogger>)->UseManualTime()->Iterations(300);
BENCHMARK(log_metrics<JSONLinesLogger>)->UseManualTime()->Iterations(300);
BENCHMARK(log_metrics<TensorBoardLogger>)->UseManualTime()->Iterations(300);
BENCHMARK(log_metrics<CSVLogger, JSONLinesLogger, TensorBoardLogger>)->UseManualTime()->Iterations(300);

}  // namespace
}  // namespace mantissa
