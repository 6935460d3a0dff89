#pragma once

#include <memory>
#include <string>

#include "cli/fit_options.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/registry.h"

namespace mantissa::cli {

/// What `--data` names, loaded and split.
struct Data {
  std::string name;  ///< "digits", "idx", "text": for the run's folder
  std::shared_ptr<const Dataset> train, val;
  ModelInput input;
};

/// Errors: c10::ValueError for words after `--data` that name no data.
void check_data(const std::string& data);

/// Which models can read what `--data` names.
/// Errors: those of check_data().
InputKind input_kind_of(const std::string& data);

/// Errors: c10::Error naming the file for what is missing, truncated or inconsistent.
Data load_data(const FitOptions& options);

/// The same unsplit, as `val`: an image set's own test part, else all there is. For models that are trained.
Data load_all_data(const FitOptions& options);

std::unique_ptr<Loader> train_loader(const FitOptions& options, const Data& data);
std::unique_ptr<Loader> val_loader(const FitOptions& options, const Data& data);

}  // namespace mantissa::cli
