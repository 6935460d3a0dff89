#include "cli/all_modes.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>

#include <ATen/Parallel.h>

#include "cli/adapters.h"
#include "cli/child_process.h"
#include "cli/errors.h"
#include "cli/option.h"
#include "cli/resolve.h"
#include "cli/run_folder.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa::cli {

std::vector<FitOptions> runs_of_all_modes(const FitOptions& o, std::vector<std::string>& left_out) {
  std::vector<FitOptions> runs;
  for (const Mode& mode : modes()) {
    if (mode.historical) continue;
    FitOptions one = o.with("precision", mode.name);
    try {
      check_optimizer_state(one);
      check_adapter(one);
      naming_flags([&] { make_precision(mode.name, at::kCPU, one.trainer.precision_options); });
    } catch (const c10::ValueError& error) {
      left_out.push_back(mode.name + " is left out: " + error.what_without_backtrace());
      continue;
    }
    // libtorch gives a forked process one thread unless the number is set.
    if (one.threads == 0) one = one.with("threads", static_cast<int64_t>(at::get_num_threads()));
    runs.push_back(one);
  }
  return runs;
}

size_t mode_column_width() {
  size_t width = 0;
  for (const Mode& mode : modes()) width = std::max(width, mode.name.size());
  return width;
}

Report run_all_modes(const FitOptions& o, bool quiet, const Json& plan) {
  std::vector<std::string> left_out;
  std::vector<FitOptions> runs = runs_of_all_modes(o, left_out);
  // Weights that do not train are no subject of a comparison of trainings.
  std::erase_if(runs, [](const FitOptions& one) { return one.traits().frozen_weights && !has_adapter(one); });
  if (runs.empty()) throw UsageError("--precision all: every mode is left out; " + left_out.front());
  for (const std::string& why : left_out) {
    TORCH_WARN(why);
  }
  for (FitOptions& one : runs) {
    if (!o.output.empty())
      one = one.with("output", (std::filesystem::path(o.output) / one.precision()).string());
    check_run_folder(one.output);
  }
  Report report;
  std::vector<std::string> failed;
  for (const FitOptions& one : runs) {
    if (InterruptScope::requested()) break;
    if (!quiet) print_to_stderr(one.precision() + "\n");
    const ChildOutcome outcome = run_in_child([&] { return run_fit(one, quiet, plan); });
    if (!outcome.result.is_null()) report.results.push_back(outcome.result);
    if (outcome.error.is_null()) continue;
    if (failed.empty()) {
      report.error = fmt::format("--precision {}: {}", one.precision(), outcome.error.get<std::string>());
      report.usage = outcome.usage;
    }
    failed.push_back(one.precision());
  }
  if (failed.size() > 1) {
    failed.erase(failed.begin());
    report.error =
        report.error.substr(0, report.error.find('\n')) + " (failed too: " + join_names(failed) + ")";
  }
  return report;
}

}  // namespace mantissa::cli
