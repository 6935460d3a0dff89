#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "mantissa/lora/lora_model.h"

namespace mantissa::cli {

struct FitOptions;

/// Whether --lora or --adapter is given, so that only an adapter is trained.
bool has_adapter(const FitOptions& options);

/// Checks whether the options --lora and --adapter fit the others.
/// Errors: c10::ValueError that names the options.
void check_adapter(const FitOptions& options);

/// Adds the adapter of --lora or --adapter to a model; returns nothing if there is none. `run` is the folder of
/// the run that trained the model, whose adapter has the same settings; if it is empty, a run begins here, and
/// --adapter names the folder to begin with.
/// Errors: UsageError for settings of --lora that do not fit the model, and for a folder without an adapter; those
///         of LoraModel for an adapter that is damaged or belongs to another model.
std::optional<LoraModel> add_adapter(const FitOptions& options, torch::nn::Module& model,
                                     const std::filesystem::path& run = {});

}  // namespace mantissa::cli
