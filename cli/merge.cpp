#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/model_weights.h"
#include "cli/run_folder.h"
#include "cli/trained_model.h"

namespace mantissa::cli {
namespace {

struct MergeCommand {
  TrainedModelCommand run;
  std::string output;
  bool dequantize = false, overwrite = false;
};

void merge(const MergeCommand& command) {
  std::error_code error;
  TORCH_CHECK(
      command.overwrite || !std::filesystem::exists(std::filesystem::symlink_status(command.output, error)),
      "'", command.output, "' already exists; choose another place, or give --overwrite");
  check_writable(command.output);
  TrainedModel run = open_trained_model(command.run, /*unsplit=*/false);
  if (!run.adapter)
    throw UsageError("the run in " + command.run.folder +
                     " trained no adapter (--lora), so there is nothing to merge; its weights are in " +
                     run.weights.string());
  const std::vector<MergedLayer> layers = run.adapter->merge_and_unload(command.dequantize);
  save_model_weights(*run.model, command.output,
                     {{"model", run.options.model}, {"precision", run.options.precision()}});
  const auto worst = std::max_element(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
    return a.relative_error < b.relative_error;
  });
  fmt::print("merged {} layers into {}; the largest relative error is {:.2g}, in {}\n", layers.size(),
             command.output, worst->relative_error, worst->name);
}

}  // namespace

void add_merge(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("merge", "Adds a run's adapter to its weights, and saves a plain model");
  const auto command = std::make_shared<MergeCommand>();
  add_trained_model_flags(*sub, command->run);
  sub->add_option("--output", command->output, "the safetensors file to write")
      ->required()
      ->check(names_a_file, "");
  sub->add_flag("--dequantize", command->dequantize,
                "write 4- and 8-bit weights as plain ones, which is exact");
  sub->add_flag("--overwrite", command->overwrite, "replace an existing output file");
  sub->callback([command] { merge(*command); });
}

}  // namespace mantissa::cli
