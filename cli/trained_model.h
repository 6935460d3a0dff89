#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include <CLI/App.hpp>

#include "cli/fit_options.h"
#include "cli/outputs.h"
#include "cli/run_data.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/lora/lora_model.h"
#include "mantissa/models/registry.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa::cli {

/// Returns the configuration of the run in `folder`.
/// Errors: c10::ValueError if there is none; those of read_yaml() and check_saved_model().
OptionValues read_run_config(const std::filesystem::path& folder);

/// The options that validate, test and predict share.
struct TrainedModelCommand {
  std::string folder;
  OptionValues flags;
  bool quiet = false;
};
void add_trained_model_flags(CLI::App& subcommand, TrainedModelCommand& command);

/// A model that a run has trained, and data for it.
struct TrainedModel {
  FitOptions options;
  Data data;  ///< the commands read its `val`
  std::shared_ptr<TensorModule> model;
  std::optional<LoraModel> adapter;              ///< of `model`, which has it
  std::filesystem::path weights;                 ///< the file that the weights come from
  std::map<std::string, at::ScalarType> dtypes;  ///< of the tensors in that file
  StateDict mode_state;  ///< what the mode had beside these weights; empty if that is unknown
};

/// What a command does with the data of a trained model.
enum class DataUse {
  kValidation,  ///< the part that the run has held out
  kTest,        ///< other data is not split
  kPrediction,  ///< the same, and labels are not read
};

/// Opens the model and its data, whose classes get the numbers that they have in the run. The weights are those of
/// `--weights`, else weights.safetensors, else those of the newest checkpoint.
/// `outputs` are what the command will write.
/// Errors: those of check_outputs(), before the data and the weights are read; c10::Error and c10::ValueError that name
///         a missing or unsuitable file.
TrainedModel open_trained_model(const TrainedModelCommand& command, DataUse use,
                                const std::vector<Output>& outputs);

/// Opens a model that reads tokens, without data: of a run's folder, as above, or of a folder with a config.json and
/// weights, whose mode is that of the weights. `inputs` are what the command reads beside the model.
/// Errors: those of open_trained_model(); c10::ValueError for a model that reads images.
TrainedModel open_text_model(const TrainedModelCommand& command, const std::vector<Output>& outputs,
                             const std::vector<std::string>& inputs);

/// Returns the options of the Trainer that evaluates it, with the state of the mode.
TrainerOptions evaluation_options(const TrainedModel& run);

/// Returns, for with_memory_cure(), the options that would need less memory.
std::string memory_cure(const FitOptions& options);

}  // namespace mantissa::cli
