#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "cli/fit_options.h"
#include "cli/json_output.h"
#include "mantissa/models/registry.h"
#include "mantissa/trainer/classification_task.h"

namespace mantissa::cli {

class RunFolder;
struct Data;

/// Trains in a folder that it makes for the run. Returns the content of result.json, which includes `plan`
/// (from plan_fit()) unless that is null.
/// Errors: those of load_data(), RunFolder and Trainer::fit(); Interrupted if a signal came before training.
Json run_fit(const FitOptions& options, bool quiet, const Json& plan = nullptr);

/// Resumes a run in its folder, from its newest checkpoint, or from the beginning if it has no checkpoint.
/// The run's config.yaml and result.json stay unchanged until the first step. That step replaces config.yaml
/// by the configuration of `options` and removes result.json, which is written again when training ends.
/// Errors: those of run_fit(); c10::ValueError if all checkpoints are damaged.
Json resume_fit(const FitOptions& options, RunFolder& folder, bool quiet, const Json& plan = nullptr);

/// Makes the model of the options for data of this form, with activation checkpointing if the options have it.
/// Errors: those of make_model(); c10::ValueError for a model that the options about memory do not fit.
std::shared_ptr<TensorModule> make_model_of(const FitOptions& options, const ModelInput& input);

/// Makes the task that trains `model` with the optimizer of the options. The learning-rate schedule needs
/// `steps`, the number of steps of the whole run. `check_scores` gets the scores of each batch.
ClassificationTask make_task(const FitOptions& options, const std::shared_ptr<TensorModule>& model,
                             int64_t steps,
                             const std::function<void(const at::Tensor& scores)>& check_scores = {});

/// Makes the task that trains `model` on `data`, which must live as long as the task.
/// Errors: the first forward pass throws those of check_labels().
ClassificationTask make_training_task(const FitOptions& options, const std::shared_ptr<TensorModule>& model,
                                      const Data& data, int64_t steps);

}  // namespace mantissa::cli
