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

/// A path need not be UTF-8, which JSON is: what is not becomes U+FFFD.
std::string dump(const Json& json);

/// Looks before a long run whether `--json`'s file can be written at its end. `run`: the folder that the run is
/// about to make, or empty.
/// Errors: those of check_writable().
void check_json(const std::string& file, const std::string& run = {});
/// Writes `json` to a file, or to standard output if that is "-"; nowhere if it is empty.
void write_json(const Json& json, const std::string& file);

/// Trains in a folder of the run's own; returns what result.json holds, of which `plan` (plan_fit()) is a
/// part unless it is null.
/// Errors: those of load_data(), RunFolder and Trainer::fit(); Interrupted if a signal came before training.
Json run_fit(const FitOptions& options, bool quiet, const Json& plan = nullptr);

/// Resumes a run in its folder, from its newest checkpoint, or from the beginning if it has none yet. Its
/// config.yaml and result.json stay as they were until the first step is taken. Then config.yaml is that of
/// `options`, and result.json is gone until training ends.
/// Errors: those of run_fit(); c10::ValueError for checkpoints that are all damaged.
Json resume_fit(const FitOptions& options, RunFolder& folder, bool quiet, const Json& plan = nullptr);

/// Prints the results as a table, and writes them as JSON to `json`: a file, or "-" for standard output.
/// `as_array`: one result is an array, too.
void report(const std::vector<Json>& results, const std::string& json, bool as_array);

/// The task that trains `model` with the optimizer of the options. `steps`: of the whole run, for the schedule.
ClassificationTask make_task(const FitOptions& options, const std::shared_ptr<TensorModule>& model,
                             int64_t steps);

}  // namespace mantissa::cli
