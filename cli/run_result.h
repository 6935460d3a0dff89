#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "cli/json_output.h"

namespace mantissa {
class Trainer;
struct FitResult;
}  // namespace mantissa

namespace mantissa::cli {

struct FitOptions;

/// Returns the number of values in the model's parameters; with `trained_only`, of those that have gradients.
int64_t parameters_of(const torch::nn::Module& model, bool trained_only = false);

/// Returns what result.json says of every run.
Json result_of(const FitOptions& options, const Trainer& trainer, const FitResult& result,
               const torch::nn::Module& model, const std::filesystem::path& folder);

/// Prints the results as a table, and writes them as JSON to `json`: a file, or "-" for standard output. With
/// `as_array` even a single result is an array.
void report(const std::vector<Json>& results, const std::string& json, bool as_array);

}  // namespace mantissa::cli
