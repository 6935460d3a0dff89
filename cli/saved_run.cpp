#include "cli/saved_run.h"

#include <vector>

#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <CLI/CLI.hpp>

#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/run_folder.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/weights.h"

namespace mantissa::cli {

namespace fs = std::filesystem;

FitOptions read_run_config(const fs::path& folder) {
  const fs::path config = folder / "config.yaml";
  TORCH_CHECK_VALUE(fs::is_regular_file(config), "'", folder.string(),
                    "' holds no run: it has no config.yaml; give the folder that `mantissa fit` made");
  return read_yaml(config);
}

void add_saved_run_flags(CLI::App& subcommand, SavedRunCommand& command) {
  subcommand.add_option("run", command.folder, "the run's folder")->required()->option_text("RUN");
  subcommand.add_flag("--quiet", command.quiet, "no progress");
  add_fit_flags(subcommand, command.flags,
                {"data", "weights", "precision", "float32_matmul_precision", "device", "threads"});
}

SavedRun open_saved_run(const SavedRunCommand& command, bool unsplit) {
  const fs::path folder = command.folder;
  FitOptions saved = usage([&] { return read_run_config(folder); });
  saved.weights.reset();  // those that the training began with
  // What kept the training short is not asked of its model.
  saved.limit_val_batches.reset(), saved.fast_dev_run.reset(), saved.overfit_batches.reset();
  SavedRun run;
  run.options = usage([&] { return resolve(merge(command.flags, saved)); });
  const FitOptions& o = run.options;
  if (*o.precision == "all") throw UsageError("--precision all is for fit; choose one mode");
  if (*o.threads > 0) at::set_num_threads(static_cast<int>(*o.threads));
  run.data = unsplit && command.flags.data ? load_all_data(o) : load_data(o);
  run.model = make_model(*o.model, run.data.input);
  run.weights = folder / kWeights;
  if (!o.weights->empty()) {
    run.weights = *o.weights;
  } else if (!fs::exists(run.weights) || !fs::exists(folder / kResult)) {
    // Without a result, weights are those of a training that has been gone on with since.
    const fs::path checkpoints = folder / kCheckpoints;
    const auto newest = fs::is_directory(checkpoints) ? load_newest(checkpoints) : std::nullopt;
    TORCH_CHECK(newest || fs::exists(run.weights), "the run in ", folder.string(),
                " has neither weights.safetensors nor a checkpoint; give --weights FILE");
    if (newest) {
      for (const std::string& warning : newest->warnings) {
        TORCH_WARN(warning);
      }
      run.weights = newest->path / "weights.safetensors";
      load_weights(*run.model, newest->checkpoint.weights, run.weights.string());
      return run;
    }
  }
  load_weights(*run.model, run.weights);
  return run;
}

}  // namespace mantissa::cli
