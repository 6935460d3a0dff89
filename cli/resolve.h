#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/fit_options.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/registry.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/task.h"

namespace mantissa::cli {

/// What `--data` names, loaded and split.
struct Data {
  std::string name;  ///< "digits", "idx", "text": for the run's folder
  std::shared_ptr<const Dataset> train, val;
  ModelInput input;
};

/// Why AdamW is refused in 16-true, unless its state is float32.
inline constexpr const char* kAdamWIn16True =
    "AdamW cannot keep its state in fp16, as --precision 16-true, O3 and O2 without master weights would "
    "have it: its epsilon 1e-8 and small squared gradients are 0 "
    "there, so that updates become nan or leap; choose --optimizer fused-adamw --stochastic-rounding true, "
    "--master-weights true, --optimizer sgd, or --precision 16-mixed or bf16-true";
bool adamw_steps_fp16(const FitOptions& options);

/// The words of which an option of `fit` (its YAML key) takes one, or with commas between them several; none
/// if it takes others too. The only list of them: resolve() checks by it, and shells complete by it.
std::vector<std::string> choices_of(const std::string& option);

/// Fills what is unset: with what suits the model, else with the command line's own defaults. Gives the
/// precision its canonical name.
/// Errors: c10::ValueError for words that name nothing (data kind, model, precision, optimizer, schedule),
/// numbers out of range and options that do not fit together.
FitOptions resolve(const FitOptions& given);

/// Warns of each option in `given` that changes nothing in `resolved`.
void warn_without_effect(const FitOptions& given, const FitOptions& resolved);

/// The loggers of `--logger` and the callbacks of `--callbacks`; none for "none".
/// Errors: c10::ValueError for a word that names none.
std::vector<std::string> logger_words(const FitOptions& options);
std::vector<std::string> callback_words(const FitOptions& options);

/// For make_precision().
/// Errors: c10::ValueError for what should be a number and is none.
PrecisionOptions precision_options(const FitOptions& options);

/// Errors: c10::Error naming the file for what is missing, truncated or inconsistent.
Data load_data(const FitOptions& options);

/// The same unsplit, as `val`: an image set's own test part, else all there is. For models that are trained.
Data load_all_data(const FitOptions& options);

std::unique_ptr<Loader> train_loader(const FitOptions& options, const Data& data);
std::unique_ptr<Loader> val_loader(const FitOptions& options, const Data& data);

/// `steps`: of the whole run, for the schedule.
OptimizerConfig make_optimizer(const FitOptions& options, torch::nn::Module& module, int64_t steps);

}  // namespace mantissa::cli
