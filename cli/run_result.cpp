#include "cli/run_result.h"

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>

#include "cli/all_modes.h"
#include "cli/fit_options.h"
#include "mantissa/trainer/metrics.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {
namespace {

Json metric(const Metrics& metrics, const std::string& name) {
  const auto found = metrics.find(name);
  return found == metrics.end() ? Json(nullptr) : Json(found->second);  // nan and inf become null, too
}

std::string cell(const Json& value) { return value.is_number() ? format_metric(value.get<double>()) : "-"; }

void print_table(const std::vector<Json>& results, std::FILE* to) {
  const size_t width = mode_column_width();
  const bool has_retries = std::any_of(results.begin(), results.end(),
                                       [](const Json& r) { return r["retries"].get<int64_t>() > 0; });
  const auto retries = [&](const auto& value) {
    return has_retries ? fmt::format(" {:>7}", value) : std::string();
  };
  std::string table =
      fmt::format("\n{:<{}} {:<6} {:>7} {:>7} {:>7}{} {:>9} {:>13} {:>10} {:>12}  {}\n", "precision", width,
                  "device", "epochs", "steps", "skipped", retries("retries"), "val loss", "val accuracy",
                  "ms a step", "peak memory", "run files");
  for (const Json& r : results) {
    const auto folder = r["run_folder"].get<std::string>();
    table += fmt::format("{:<{}} {:<6} {:>7} {:>7} {:>7}{} {:>9} {:>13} {:>10.2f} {:>9} MiB  {}\n",
                         r["precision"].get<std::string>(), width, r["device"].get<std::string>(),
                         r["epochs"].get<int64_t>(), r["steps"].get<int64_t>(),
                         r["skipped_steps"].get<int64_t>(), retries(r["retries"].get<int64_t>()),
                         cell(r["val_loss"]), cell(r["val_accuracy"]), r["step_ms"].get<double>(),
                         r["peak_memory_bytes"].get<int64_t>() >> 20, folder.empty() ? "-" : folder);
  }
  std::fputs(table.c_str(), to);
}

}  // namespace

int64_t parameters_of(const torch::nn::Module& model, bool trained_only) {
  int64_t count = 0;
  for (const at::Tensor& p : model.parameters())
    if (p.requires_grad() || !trained_only) count += p.numel();
  return count;
}

Json result_of(const FitOptions& o, const Trainer& trainer, const FitResult& result,
               const torch::nn::Module& model, const std::filesystem::path& folder) {
  return {{"precision", trainer.precision().name()},
          {"device", trainer.device().str()},
          {"model", o.model},
          {"data", o.data},
          {"parameters", parameters_of(model)},
          {"epochs", result.epochs},
          {"steps", result.steps},
          {"skipped_steps", result.skipped_steps},
          {"retries", result.retries},
          {"train_loss", metric(result.metrics, "train_loss")},
          {"val_loss", metric(result.metrics, "val_loss")},
          {"val_accuracy", metric(result.metrics, "val_accuracy")},
          {"seconds", result.seconds},
          {"step_ms", result.step_ms},
          {"samples_per_second", result.samples_per_second},
          {"peak_memory_bytes", result.peak_memory_bytes},
          {"interrupted_by", result.interrupted_by},
          {"stopped_by", result.stopped_by},
          {"run_folder", folder.string()},
          {"mantissa_version", MANTISSA_VERSION}};
}

void report(const std::vector<Json>& results, const std::string& json, bool as_array) {
  if (results.empty()) return;
  // The table comes first: if writing the file fails after all, the numbers of a long run are still shown.
  print_table(results, json == "-" ? stderr : stdout);
  write_json(as_array ? Json(results) : results[0], json);
}

}  // namespace mantissa::cli
