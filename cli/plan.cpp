#include "cli/plan.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/Utils.h>
#include <c10/util/Exception.h>

#include "cli/adapters.h"
#include "cli/all_modes.h"
#include "cli/child_process.h"
#include "cli/errors.h"
#include "cli/fine_tuning.h"
#include "cli/loggers_and_callbacks.h"
#include "cli/option.h"
#include "cli/run_data.h"
#include "cli/terminal_text.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/memory_plan.h"

namespace mantissa::cli {
namespace {

/// Drops the warnings about a mode that the run has not chosen.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// Plans one mode, in the child process.
Json plan_mode(FitOptions o) {
  o.warmup.warmup_steps = 0;  // two steps are too few for a warm-up, and memory does not depend on it
  at::set_num_threads(static_cast<int>(o.threads));
  const TrainerOptions options = trainer_options(o);
  const Data data = load_data(o);
  const auto train = train_loader(o, data);
  train->set_epoch(0);
  const std::optional<Batch> batch = train->next();
  const std::shared_ptr<TensorModule> model = make_model_of(o, data.input);
  const auto adapter = add_adapter(o, *model);
  usage([&] { train_only(*model, o.train_only); });
  ClassificationTask task = make_training_task(o, model, data, /*steps=*/2);
  const MemoryPlan plan = plan_memory(task, *batch, options);
  return {{"precision", plan.precision},
          {"weights", plan.weights},
          {"buffers", plan.buffers},
          {"masters", plan.masters},
          {"mode_states", plan.mode_states},
          {"gradients", plan.gradients},
          {"optimizer_states", plan.optimizer_states},
          {"activations", plan.activations},
          {"total", plan.total()},
          {"peak", plan.peak}};
}

FitOptions with_the_modes_own(const FitOptions& o) {
  OptionValues values = o.values;
  for (const Option& option : options())
    if (option.to.or_auto) values.set(option.name, "auto");
  return fit_options(values);
}

std::string mebibytes(const Json& bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes.get<int64_t>()) / (1 << 20));
}

void print_plan(const FitOptions& o, const Json& plan, std::FILE* to) {
  const size_t width = mode_column_width() + 2;
  std::string table = fmt::format(
      "memory plan in MiB: {}, batches of {}, {}\n"
      "{:<{}} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>9} {:>9}\n",
      o.model, o.loader.batch_size, o.optimizer, "precision", width, "weights", "buffers", "masters", "mode",
      "gradients", "states", "activations", "total", "peak");
  for (const Json& row : plan) {
    const auto name = row["precision"].get<std::string>();
    table += fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>9} {:>9}\n",
                         name + (name == o.precision() ? " *" : ""), width, mebibytes(row["weights"]),
                         mebibytes(row["buffers"]), mebibytes(row["masters"]), mebibytes(row["mode_states"]),
                         mebibytes(row["gradients"]), mebibytes(row["optimizer_states"]),
                         mebibytes(row["activations"]), mebibytes(row["total"]), mebibytes(row["peak"]));
  }
  std::fputs((table + "\n").c_str(), to);
  std::fflush(to);  // before a long run, and before other processes write to it
}

}  // namespace

Json plan_fit(const FitOptions& o, std::FILE* to) {
  const bool all = o.precision() == "all";
  std::vector<std::string> left_out;
  const std::vector<FitOptions> runs = runs_of_all_modes(all ? o : with_the_modes_own(o), left_out);
  Json rows = Json::array();
  const auto plan = [&](const FitOptions& one) {
    ChildOutcome outcome = run_in_child([&] {
      std::optional<NoWarnings> silenced;
      if (one.precision() != o.precision()) silenced.emplace();
      return plan_mode(one);
    });
    if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
    if (!outcome.result.is_null()) rows.push_back(outcome.result);
    return outcome;
  };
  if (!all) {
    FitOptions own = o;
    if (own.threads == 0) own.threads = at::get_num_threads();
    const ChildOutcome outcome = plan(own);
    if (!outcome.error.is_null()) {
      const auto why = outcome.error.get<std::string>();
      if (outcome.usage) throw UsageError(why);
      TORCH_CHECK(false, why);
    }
    for (const std::string& why : left_out)  // with precision "all", the runs report these
      if (!why.starts_with(o.precision() + " ")) {
        TORCH_WARN("memory plan: ", why);
      }
  }
  for (const FitOptions& one : runs) {
    if (one.precision() == o.precision()) continue;
    const ChildOutcome outcome = plan(one);
    if (!outcome.error.is_null()) {
      TORCH_WARN("memory plan: ", one.precision(), " is left out: ", outcome.error.get<std::string>());
    }
  }
  print_plan(o, rows, to);
  return rows;
}

void print_measured(const std::vector<Json>& results, std::FILE* to) {
  for (const Json& result : results) {
    const Json& plan = result["memory_plan"];
    const auto row = std::find_if(plan.begin(), plan.end(),
                                  [&](const Json& r) { return r["precision"] == result["precision"]; });
    if (row == plan.end()) continue;  // it could not be planned, which has been reported
    const auto bytes = [](const Json& value) { return human_bytes(value.get<uint64_t>()); };
    std::string line = fmt::format("memory of {}: planned {}, at its peak {}; measured peak {}",
                                   result["precision"].get<std::string>(), bytes((*row)["total"]),
                                   bytes((*row)["peak"]), bytes(result["peak_memory_bytes"]));
    if (result["memory_before_bytes"] != 0)
      line += fmt::format(", {} of it before the model was made", bytes(result["memory_before_bytes"]));
    std::fputs((line + "\n").c_str(), to);
  }
}

}  // namespace mantissa::cli
