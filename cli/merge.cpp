#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <CLI/CLI.hpp>

#include "cli/adapters.h"
#include "cli/commands.h"
#include "cli/convert_options.h"
#include "cli/dtype_names.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/model_config.h"
#include "cli/model_weights.h"
#include "cli/run_folder.h"
#include "cli/trained_model.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/weights.h"
#include "mantissa/quant/stored_weights.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa::cli {
namespace {

struct MergeCommand {
  TrainedModelCommand run;
  std::string output, dtype;
  bool dequantize = false, overwrite = false;
};

bool is_dtype_of_weights(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

/// Unset: the dtypes of the run's weights.
std::optional<at::ScalarType> parse_merged_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const at::ScalarType dtype = parse_dtype(text, {"fp32", "fp16", "bf16"});
  TORCH_CHECK_VALUE(
      is_dtype_of_weights(dtype), "--dtype ", text,
      ": adapters are merged into weights of fp32, fp16 or bf16; choose one of them, and cast the "
      "result with `mantissa convert`");
  return dtype;
}

at::Tensor cast(const at::Tensor& weight, at::ScalarType dtype, const std::string& name) {
  if (is_packed(weight)) return make_packed_weight(packed_data(weight), dtype);
  at::Tensor values = weight.to(dtype);
  TORCH_CHECK(dtype != at::kHalf || at::isfinite(values).all().item<bool>(), "'", name,
              "' has values that fp16 cannot hold; choose --dtype bf16 or fp32");
  return values;
}

/// Gives a model's weights the dtypes that the merged file has. The errors that merging reports then include this
/// rounding. The model was made in float32, whatever its file has.
void set_dtypes(const TrainedModel& run, std::optional<at::ScalarType> wanted) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, StoredWeight> quantized = find_stored_weights(run.dtypes);
  for (const auto& [name, weight] : named_weights(*run.model)) {
    // The adapter's tensors, which alone are trained, are added up in float32.
    if (weight.requires_grad() || !weight.is_floating_point()) continue;
    const at::Tensor base = base_weight(weight);
    const auto stored = run.dtypes.find(name);
    // The dtype in which 4-bit codes are stored says nothing about the weight.
    const bool is_stored_plain =
        stored != run.dtypes.end() && is_dtype_of_weights(stored->second) && !quantized.contains(name);
    const at::ScalarType dtype = wanted ? *wanted : is_stored_plain ? stored->second : base.scalar_type();
    if (dtype != base.scalar_type())
      replace_weight(weight, with_base_weight(weight, cast(base, dtype, name)));
  }
}

/// Makes the weights plain that are still packed: those of layers without an adapter.
void dequantize_all(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, weight] : named_weights(module))
    if (is_packed(weight)) replace_weight(weight, packed_data(weight)->dequantize(weight.scalar_type()));
}

/// Prints what rounding to the formats of the file cost, and warns if that is as much as the adapters did.
void report_merged(const std::vector<MergedLayer>& layers, const std::string& output) {
  const auto largest = [&](double MergedLayer::*error) {
    return std::max_element(layers.begin(), layers.end(),
                            [&](const auto& a, const auto& b) { return a.*error < b.*error; });
  };
  const auto worst = largest(&MergedLayer::relative_error), lost = largest(&MergedLayer::error_over_change);
  if (worst->relative_error == 0) {
    fmt::print("merged {} layers into {}; nothing is lost by rounding\n", layers.size(), output);
    return;
  }
  fmt::print("merged {} layers into {}; the largest relative error is {:.2g}, in {}\n", layers.size(), output,
             worst->relative_error, worst->name);
  if (lost->error_over_change == 0) return;
  fmt::print("the largest error relative to the adapter's change is {:.2g}, in {}\n", lost->error_over_change,
             lost->name);
  constexpr double kMuch = 0.5;
  if (lost->error_over_change > kMuch) {
    TORCH_WARN(
        "rounding changes '", lost->name, "' by ", fmt::format("{:.2g}", lost->error_over_change),
        " times what its adapter does, so the file may be hardly better than the base model; merge with "
        "--dequantize if the weights are in 4 or 8 bits, or with --dtype fp32 if they are in 16");
  }
}

/// Returns what a file of a model's weights lists.
std::map<std::string, SafetensorsEntry> entries_of(const torch::nn::Module& module) {
  std::map<std::string, SafetensorsEntry> entries;
  for (const auto& [name, tensor] : named_parts(named_weights(module)))
    entries[name] = {.dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()};
  return entries;
}

/// Returns the place of a config.json for an output that has the name of a public model's file; "" for another output.
std::string config_beside(const std::string& output) {
  const std::filesystem::path path = output;
  return path.filename() == "model.safetensors" ? (path.parent_path() / kModelConfig).string() : "";
}

void merge(const MergeCommand& command) {
  usage([&] { check_safetensors_name(command.output); });
  const auto dtype = usage([&] { return parse_merged_dtype(command.dtype); });
  const std::string config = config_beside(command.output);
  TrainedModel run = open_trained_model(command.run, DataUse::kValidation,
                                        {{command.output, command.overwrite}, {config, command.overwrite}});
  if (!run.adapter && has_adapter(run.options))
    throw UsageError("--weights " + run.options.weights +
                     " has no adapter, so there is nothing to merge; leave it out for the run's own weights");
  if (!run.adapter)
    throw UsageError("the run in " + command.run.folder +
                     " trained no adapter (--lora), so there is nothing to merge; its weights are in " +
                     run.weights.string());
  set_dtypes(run, dtype);
  const std::vector<MergedLayer> layers = run.adapter->merge_and_unload(command.dequantize);
  if (command.dequantize) dequantize_all(*run.model);
  save_model_weights(*run.model, command.output,
                     {{"model", run.options.model}, {"precision", mode_of_weights(entries_of(*run.model))}});
  if (const std::string text = config.empty() ? "" : config_of(*run.model); !text.empty())
    write_file_atomically(config, text, Links::kReplace);
  report_merged(layers, command.output);
}

}  // namespace

void add_merge(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("merge", "Adds a run's adapter to its weights, and saves a plain model");
  const auto command = std::make_shared<MergeCommand>();
  add_trained_model_flags(*sub, command->run);
  sub->add_option("--output", command->output, "the safetensors file to write")
      ->required()
      ->check(names_a_file, "");
  sub->add_option(
         "--dtype", command->dtype,
         "dtype of the weights in the file; that of the run's weights if left out; fp32 is exact for "
         "plain weights, fp16 and bf16 round")
      ->option_text("fp32|fp16|bf16");
  sub->add_flag(
      "--dequantize", command->dequantize,
      "write 4- and 8-bit weights as plain ones: nothing is lost in fp32, and fp16 and bf16 round once; "
      "left out, they are quantized again, and the error is printed");
  sub->add_flag("--overwrite", command->overwrite, "replace an existing output file");
  sub->callback([command] { merge(*command); });
}

}  // namespace mantissa::cli
