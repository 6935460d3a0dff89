#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/fit_options.h"
#include "mantissa/models/registry.h"
#include "mantissa/trainer/classification_task.h"

namespace mantissa::cli {

class RunFolder;
using Json = nlohmann::ordered_json;

/// Returns `json` as text. JSON must be valid UTF-8, but a path in it need not be: invalid bytes become
/// U+FFFD.
std::string dump(const Json& json);

/// Checks before a long run whether the file of `--json` can be written at its end. `run` is the folder that
/// the run is about to make, or empty.
/// Errors: those of check_writable().
void check_json(const std::string& file, const std::string& run = {});
/// Writes `json` to `file`, or to standard output if `file` is "-". If `file` is empty, writes nothing.
void write_json(const Json& json, const std::string& file);

/// Trains in a folder that it makes for the run. Returns the content of result.json, which includes `plan`
/// (from plan_fit()) unless that is null.
/// Errors: those of load_data(), RunFolder and Trainer::fit(); Interrupted if a signal came before training.
Json run_fit(const FitOptions& options, bool quiet, const Json& plan = nullptr);

/// Resumes a run in its folder, from its newest checkpoint, or from the beginning if it has no checkpoint.
/// The run's config.yaml and result.json stay unchanged until the first step. That step replaces config.yaml
/// by the configuration of `options` and removes result.json, which is written again when training ends.
/// Errors: those of run_fit(); c10::ValueError if all checkpoints are damaged.
Json resume_fit(const FitOptions& options, RunFolder& folder, bool quiet, const Json& plan = nullptr);

/// Prints the results as a table, and writes them as JSON to `json`: a file, or "-" for standard output. With
/// `as_array` even a single result is an array.
void report(const std::vector<Json>& results, const std::string& json, bool as_array);

/// Makes the model of the options for data of this form, with activation checkpointing if the options have it.
/// Errors: those of make_model(); c10::ValueError for a model that the options about memory do not fit.
std::shared_ptr<TensorModule> make_model_of(const FitOptions& options, const ModelInput& input);

/// Makes the task that trains `model` with the optimizer of the options. The learning-rate schedule needs
/// `steps`, the number of steps of the whole run.
ClassificationTask make_task(const FitOptions& options, const std::shared_ptr<TensorModule>& model,
                             int64_t steps);

}  // namespace mantissa::cli
