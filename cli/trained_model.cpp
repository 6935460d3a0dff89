#include "cli/trained_model.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <CLI/CLI.hpp>

#include "cli/adapters.h"
#include "cli/config_file.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/labels.h"
#include "cli/loggers_and_callbacks.h"
#include "cli/mode_state.h"
#include "cli/model_weights.h"
#include "cli/option.h"
#include "cli/resolve.h"
#include "cli/run_folder.h"
#include "cli/saved_paths.h"
#include "cli/without_effect.h"
#include "mantissa/data/idx.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/sharded.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/public_model.h"
#include "mantissa/precision/empty_init.h"
#include "mantissa/quant/stored_weights.h"

namespace mantissa::cli {

namespace fs = std::filesystem;

namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_of(const std::map<std::string, at::Tensor>& weights) {
  Shapes shapes;
  for (const auto& [name, weight] : weights) shapes[name] = weight.sizes().vec();
  return shapes;
}

/// Returns the shapes of a file's tensors under the names that the module has for them.
Shapes named_as_in(const torch::nn::Module& module, const Shapes& stored) {
  const auto* const known = dynamic_cast<const PublicModel*>(&module);
  if (!known) return stored;
  Shapes named;
  for (const auto& [name, shape] : stored) named[known->own_name(name)] = shape;
  return named;
}

/// The weights that a run's model will load.
struct SavedWeights {
  fs::path path;
  std::map<std::string, at::Tensor> tensors;  ///< of a checkpoint; empty: `path` is a file, to be read
  Shapes shapes;
  std::map<std::string, at::ScalarType> dtypes;  ///< of the tensors as they are stored
  StateDict mode_state;                          ///< of a checkpoint, which has been read
};

bool has_adapter_weights(const SavedWeights& weights) {
  return std::any_of(weights.shapes.begin(), weights.shapes.end(),
                     [](const auto& entry) { return entry.first.find(".lora_A.") != std::string::npos; });
}

SavedWeights read_shapes(const fs::path& path) {
  const SafetensorsModel model(path);
  SavedWeights found{path, read_if_quantized(model), {}, dtypes_of(model.entries()), {}};
  if (!found.tensors.empty()) {
    found.shapes = stored_shapes(found.tensors);
    found.tensors.clear();  // load_model_weights() knows in which form a file has them
    return found;
  }
  for (const auto& [name, entry] : model.entries()) found.shapes[name] = entry.shape;
  return found;
}

/// The weights of a checkpoint, which has been read.
SavedWeights as_saved(NewestCheckpoint newest) {
  std::map<std::string, at::Tensor>& tensors = newest.checkpoint.weights;
  SavedWeights found{newest.path / kCheckpointWeights,
                     {},
                     stored_shapes(tensors),
                     {},
                     mode_state_in(newest.checkpoint.state)};
  for (const auto& [name, tensor] : tensors) found.dtypes.emplace(name, tensor.scalar_type());
  found.tensors = std::move(tensors);
  return found;
}

/// Returns the state of the mode only with `wants_state`: it is read together with that of the optimizer.
SavedWeights find_weights(const fs::path& folder, const std::string& given, bool wants_state) {
  if (!given.empty()) return read_shapes(given);
  const fs::path weights = folder / kWeights, checkpoints = folder / kCheckpoints;
  // Without a result, training has continued since these weights were written.
  if (fs::exists(weights) && fs::exists(folder / kResult)) {
    SavedWeights found = read_shapes(weights);
    if (wants_state) found.mode_state = mode_state_of_result(folder);
    return found;
  }
  auto newest = fs::is_directory(checkpoints) ? load_newest(checkpoints) : std::nullopt;
  TORCH_CHECK(newest || fs::exists(weights), "the run in ", folder.string(),
              " has neither weights.safetensors nor a checkpoint; give --weights FILE");
  if (!newest) return read_shapes(weights);
  for (const std::string& warning : newest->warnings) {
    TORCH_WARN(warning);
  }
  return as_saved(*std::move(newest));
}

/// Returns the number of classes of a model with these weights: the length of the dimension that grows with
/// the classes. Returns nothing for the weights of another model, which load_weights() refuses with a full
/// explanation.
std::optional<int64_t> classes_of(const std::string& model, ModelInput input, const Shapes& stored) {
  const EmptyInit no_values;
  const auto shapes_for = [&](int64_t classes) {
    input.classes = classes;
    return shapes_of(named_weights(*make_model(model, input)));
  };
  const Shapes two = shapes_for(2), three = shapes_for(3);
  input.classes = 2;
  const Shapes weights = named_as_in(*make_model(model, input), stored);
  for (const auto& [name, shape] : two) {
    const auto differs = std::mismatch(shape.begin(), shape.end(), three.at(name).begin()).first;
    if (differs == shape.end()) continue;
    const auto dimension = static_cast<size_t>(differs - shape.begin());
    const auto found = weights.find(name);
    if (found != weights.end() && found->second.size() == shape.size()) return found->second[dimension];
  }
  return std::nullopt;
}

std::string pixels(const ModelInput& input) { return fmt::format("{} x {}", input.height, input.width); }

/// Returns the input of the model as it was trained, if the run's data is still available.
std::optional<ModelInput> trained_input(const FitOptions& run) {
  try {
    return load_data(run).input;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

bool fits(const torch::nn::Module& module, const Shapes& stored) {
  const Shapes weights = named_as_in(module, stored);
  const Shapes shapes = shapes_of(named_weights(module));
  return std::all_of(shapes.begin(), shapes.end(), [&](const auto& wanted) {
    const auto found = weights.find(wanted.first);
    return found == weights.end() || found->second == wanted.second;
  });
}

/// Refuses images that the run's model cannot read: those with another number of channels, or else of another size.
void check_images(const TrainedModel& run, const FitOptions& trained, const Shapes& stored) {
  if (fits(*run.model, stored)) return;
  const FitOptions& o = run.options;
  const ModelInput& input = run.data.input;
  const std::optional<ModelInput> before = trained_input(trained);
  for (const int64_t channels : before ? std::vector{before->channels} : std::vector<int64_t>{1, 3}) {
    ModelInput other = input;
    other.channels = channels;
    TORCH_CHECK_VALUE(channels == input.channels || !fits(*make_model(o.model, other), stored),
                      "the run's model reads images with ", channels, " channel", channels == 1 ? "" : "s",
                      "; --data ", o.data, " has ", input.channels, "; give images with the same channels");
  }
  const std::string size = before ? pixels(*before) + " pixels" : "another size";
  TORCH_CHECK_VALUE(false, "the run's model reads images of ", size, "; --data ", o.data, " has ",
                    pixels(input), "; give images of the size that it was trained on");
}

/// Makes a model with as many classes as `weights` have, whatever the data suggests.
/// Errors: c10::ValueError for data that such a model cannot read.
void make_trained_model(TrainedModel& run, const FitOptions& trained, const SavedWeights& weights,
                        bool is_other_data) {
  const FitOptions& o = run.options;
  ModelInput& input = run.data.input;
  if (input.kind == InputKind::kImages) {
    if (const auto classes = classes_of(o.model, input, weights.shapes)) {
      input.classes = *classes;
      if (o.reads_labels) check_labels({run.data, "--data " + o.data, "the run's model"}, *classes);
    }
  }
  const EmptyInit are_loaded;  // memory that nobody has written to is not there yet
  run.model = make_model(o.model, input);
  if (is_other_data && input.kind == InputKind::kImages && o.weights.empty())
    check_images(run, trained, weights.shapes);
}

/// Warns about a file in float that the mode of its run quantizes, such as the output of `mantissa merge --dequantize`:
/// the result is then not that of the file's own weights.
void warn_of_quantization(const FitOptions& o, const SavedWeights& weights) {
  if (o.weights.empty() || !o.traits().frozen_weights || !quantized_weights_of(weights.dtypes).empty())
    return;
  TORCH_WARN(
      "'", o.weights, "' has its weights in float, and ", o.precision(),
      ", the precision of the run, quantizes them; give --precision 32-true to measure them as they are, or "
      "--precision ",
      o.precision(), " if you mean that");
}

}  // namespace

OptionValues read_run_config(const fs::path& folder) {
  const fs::path config = folder / "config.yaml";
  TORCH_CHECK_VALUE(fs::exists(folder), "'", folder.string(),
                    "' does not exist; give the folder of a run, which `mantissa fit` made");
  TORCH_CHECK_VALUE(fs::is_directory(folder), "'", folder.string(),
                    "' is not a folder; give the folder of a run, which `mantissa fit` made");
  TORCH_CHECK_VALUE(fs::is_regular_file(config), "'", folder.string(),
                    "' holds no run: it has no config.yaml; give the folder that `mantissa fit` made");
  OptionValues options = read_yaml(config);
  // Every run writes all of its options. Using defaults for missing ones would describe another run, with
  // other held-out samples.
  constexpr std::array kAlways{"model", "data", "precision", "seed", "lr", "batch_size", "optimizer"};
  const bool is_whole =
      std::all_of(kAlways.begin(), kAlways.end(), [&](const char* option) { return options.has(option); });
  TORCH_CHECK_VALUE(is_whole, "'", config.string(),
                    "' lacks options that every run writes (model, data, precision, seed, lr, batch_size, "
                    "optimizer); restore the file, or begin another run from the weights: fit --weights");
  check_saved_model(folder, options);
  return options;
}

void add_trained_model_flags(CLI::App& subcommand, TrainedModelCommand& command) {
  subcommand.add_option("run", command.folder, "the run's folder")->required()->option_text("RUN");
  subcommand.add_flag("--quiet", command.quiet, "no progress");
  add_fit_flags(subcommand, command.flags, FlagsOf::kTrained);
}

TrainerOptions evaluation_options(const TrainedModel& run) {
  TrainerOptions options = trainer_options(run.options);
  if (run.options.traits().layer_products)
    options.callbacks.push_back(loads_mode_state(run.mode_state, run.weights.string()));
  return options;
}

std::string memory_cure(const FitOptions& o) {
  return fmt::format(
      " (--model {}, --precision {}); choose a 16-bit --precision or another --device, free some, or raise "
      "the limit (ulimit -v)",
      o.model, o.precision());
}

namespace {

/// What a command knows of a model before it makes it.
struct Opened {
  TrainedModel run;
  OptionValues saved;  ///< the options of the run, without those that the flags make meaningless
  SavedWeights weights;
};

/// What a command writes, and what it reads beside a model and its data.
struct CommandFiles {
  const std::vector<Output>& outputs;
  std::vector<std::string> inputs = {};
};

/// Opens the weights of a folder whose options are `saved`.
Opened open_weights(const TrainedModelCommand& command, OptionValues saved, CommandFiles files) {
  Opened opened;
  opened.saved = usage([&] { return options_of_run(saved, command.flags); });
  TrainedModel& run = opened.run;
  run.options = usage([&] { return resolve(merge(command.flags, opened.saved)); });
  const FitOptions& o = run.options;
  if (o.precision() == "all") throw UsageError("--precision all is for fit; choose one mode");
  if (command.flags.has("weights") && o.weights.empty())
    throw UsageError(
        "--weights none: only fit begins with random weights; leave it out for the run's own, or give a "
        "file");
  warn_without_effect(command.flags, o);
  for (const std::string& input : inputs_of(o)) files.inputs.push_back(input);
  check_outputs(files.outputs, files.inputs);
  if (o.threads > 0) at::set_num_threads(static_cast<int>(o.threads));
  // Only modes that choose among layers have a state that forward passes need.
  const bool wants_state = o.traits().layer_products.has_value();
  opened.weights = find_weights(command.folder, o.weights, wants_state);
  run.weights = opened.weights.path;
  run.dtypes = opened.weights.dtypes;
  if (!command.flags.has("precision")) warn_of_quantization(o, opened.weights);
  if (wants_state) run.mode_state = opened.weights.mode_state;
  return opened;
}

/// Adds the adapter to the model that was made, and loads its weights.
void load(TrainedModel& run, const SavedWeights& weights, const fs::path& folder) {
  const FitOptions& o = run.options;
  // A file without an adapter, such as the output of `mantissa merge`, is evaluated as it is.
  if (o.weights.empty() || has_adapter_weights(weights)) run.adapter = add_adapter(o, *run.model, folder);
  if (weights.tensors.empty()) {
    load_model_weights(*run.model, weights.path, o);
  } else {
    load_model_weights(*run.model, weights.tensors, weights.path.string(), o);
  }
}

OptionValues saved_options(const fs::path& folder) {
  OptionValues saved = usage([&] { return read_run_config(folder); });
  for (const Option& option : options())
    if (option.only_for_training) saved.erase(option.name);
  return saved;
}

/// Returns options of a run that would have trained the model of a folder with a config.json and weights.
OptionValues options_of_public_model(const TrainedModelCommand& command) {
  const auto* const given = command.flags.get_if<std::string>("weights");
  const std::string weights = given ? *given : command.folder;
  const std::string mode = mode_of_weights(SafetensorsModel(weights).entries());
  OptionValues options;
  options.set("model", kConfigPrefix + command.folder);
  options.set("data", "text:" + command.folder);  // any text; it is not read
  options.set("weights", weights);
  options.set("optimizer", "sgd");  // fits every mode
  options.set("precision", mode.empty() ? "32-true" : mode);
  return options;
}

/// Without the names of the run, the classes of other data have numbers of their own.
void warn_without_names(const fs::path& folder, const FitOptions& o, const Data& data) {
  if (data.names.classes.empty() || !o.names.classes.empty() || !o.reads_labels) return;
  TORCH_WARN("the run in '", folder.string(), "' has no ", kDataRecord,
             ", which names its classes: those of --data ", o.data,
             " are numbered in their own order, which may be another one");
}

}  // namespace

TrainedModel open_trained_model(const TrainedModelCommand& command, DataUse use,
                                const std::vector<Output>& outputs) {
  auto [run, saved, weights] = open_weights(command, saved_options(command.folder), {outputs});
  // The weights decide which labels are valid, not --classes. Here any byte is accepted.
  run.options.names = load_record(command.folder).names;
  run.options.reads_labels = use != DataUse::kPrediction;
  FitOptions readable = run.options;
  readable.classes = kMaxIdxClasses;
  check_saved_paths(command.folder, command.flags, run.options);
  const bool is_other_data = command.flags.has("data"),
             splits = use == DataUse::kValidation || !is_other_data;
  run.data = splits ? load_data(readable) : load_all_data(readable);
  if (is_other_data) warn_without_names(command.folder, run.options, run.data);
  OptionValues before = command.flags;
  before.erase("data");
  make_trained_model(run, usage([&, &from = saved] { return resolve(merge(before, from)); }), weights,
                     is_other_data);
  load(run, weights, command.folder);
  return std::move(run);
}

TrainedModel open_text_model(const TrainedModelCommand& command, const std::vector<Output>& outputs,
                             const std::vector<std::string>& inputs) {
  const fs::path folder = command.folder;
  const bool is_public = !fs::exists(folder / "config.yaml") && fs::exists(folder / kModelConfig);
  auto [run, saved, weights] = open_weights(
      command, is_public ? options_of_public_model(command) : saved_options(folder), {outputs, inputs});
  const FitOptions& o = run.options;
  TORCH_CHECK_VALUE(find_model(o.model).reads(InputKind::kTokens), "the model of ", folder.string(), ", ",
                    o.model, ", reads images; give one that reads text, such as gpt-tiny");
  run.data.input = token_input(o);
  // The sizes of a config.json are its own, and there is no data that they have to fit.
  if (o.model.starts_with(kConfigPrefix)) run.data.input.vocabulary = run.data.input.context = 0;
  {
    const EmptyInit are_loaded;
    run.model = make_model(o.model, run.data.input);
  }
  load(run, weights, is_public ? fs::path() : folder);
  return std::move(run);
}

}  // namespace mantissa::cli
