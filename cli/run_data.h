#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/registry.h"

namespace mantissa::cli {

struct Labelled;

/// Errors: c10::ValueError if `--data` names no data.
void check_data(const std::string& data);

/// Returns the kind of model that can read what `--data` names.
/// Errors: those of check_data().
InputKind input_kind_of(const std::string& data);

/// Returns the input of a model for `--data` that holds tokens. It reads no file of data.
ModelInput token_input(const FitOptions& options);

/// Returns the file or folder that a model such as "hf:llama" names; "" for a model of another kind.
std::string path_of_model(const std::string& model);

/// Returns the files and folders that a command with these options reads, beside the folder of a run.
std::vector<std::string> inputs_of(const FitOptions& options);

/// Returns the options with what the run in `folder` has kept of its data.
/// Errors: those of load_record().
FitOptions with_record(FitOptions options, const std::filesystem::path& folder);

/// Errors: c10::Error that names a missing, truncated or inconsistent file; c10::ValueError for other sizes than those of the run
///         that is resumed.
Data load_data(const FitOptions& options);

/// Loads the data unsplit, as `val`, for trained models: the test part of an image set, or else all of the
/// data.
Data load_all_data(const FitOptions& options);

/// Returns what the scores of a model that trains on the data are checked against.
Labelled labelled_for_training(const FitOptions& options, const Data& data);

std::unique_ptr<Loader> train_loader(const FitOptions& options, const Data& data);
std::unique_ptr<Loader> val_loader(const FitOptions& options, const Data& data);

}  // namespace mantissa::cli
