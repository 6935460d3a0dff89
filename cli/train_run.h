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

/// `--json`'s file, before a long run, which is to make the folder `run` if that is not empty.
/// Errors: those of check_writable().
void check_json(const std::string& file, const std::string& run = {});
/// Writes `json` to a file, or to standard output if that is "-"; nowhere if it is empty.
void write_json(const Json& json, const std::string& file);

/// Trains in a folder of the run's own; returns what result.json holds, of which `plan` (plan_fit()) is a
/// part unless it is null.
/// Errors: those of load_data(), RunFolder and Trainer::fit(); Interrupted if a signal came before training.
Json run_fit(const FitOptions& options, bool quiet, const Json& plan = nullptr);

/// Goes on in the folder of a run that ended early, from its newest checkpoint, or from the beginning if it
/// has none yet. Its config.yaml and result.json are as they were until the first step is taken: then the one
/// is that of `options`, and the other is gone until training ends.
/// Errors: those of run_fit(); c10::ValueError for checkpoints that are all damaged.
Json resume_fit(const FitOptions& options, RunFolder& folder, bool quiet, const Json& plan = nullptr);

/// The results as a table, and as JSON where `json` says so: a file, or "-" for standard output. `as_array`:
/// also of one.
void report(const std::vector<Json>& results, const std::string& json, bool as_array);

/// For `model`, as the options say; `steps` is for the schedule.
ClassificationTask make_task(const FitOptions& options, const std::shared_ptr<TensorModule>& model,
                             int64_t steps);

}  // namespace mantissa::cli
