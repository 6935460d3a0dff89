#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cli/data_names.h"
#include "cli/option_values.h"
#include "mantissa/data/dataset.h"
#include "mantissa/models/registry.h"

namespace mantissa::cli {

struct FitOptions;

/// The data that `--data` names, loaded and split.
struct Data {
  std::string name;  ///< the kind's name: for the run's folder
  std::shared_ptr<const Dataset> train, val;
  ModelInput input;
  /// Overlapping windows: an epoch draws as many of them as cover the data once, each at a random position.
  bool draws_windows = false;
  /// The training images are cropped or shifted as they are read.
  bool is_augmented = false;
  /// The samples are rows of features, which a model reads as images of one row.
  bool has_features = false;
  DataNames names = {};
  /// Returns the file of a sample by its number, which is its target where labels are not read. Null for data whose samples are
  /// no files.
  std::function<std::string(int64_t)> file_of = {};

  /// Only for data with both parts.
  DataSizes sizes() const { return {train->size(), val->size()}; }
  DataRecord record() const { return {.names = names, .sizes = sizes()}; }
};

/// Options with the defaults that they have for some data.
using DataDefaults = std::vector<std::pair<std::string, OptionValue>>;

/// A kind of data that `--data` can name, such as idx:DIR. The functions get what follows the colon.
struct DataKind {
  std::string name;      ///< "idx"
  std::string argument;  ///< what follows the colon, for messages: "DIR"; "" if nothing does
  std::string help;      ///< the remark of `fit --help`; may be ""
  InputKind input;
  /// Loads the data, and splits it where it has a split of its own. Without one, `val` stays null and a random part
  /// of `train` is held out.
  std::function<Data(const std::string& path, const FitOptions&)> load;
  /// Loads the data unsplit, as `val`, for a trained model. If empty, that is the `val` of load(), or else all of it.
  std::function<Data(const std::string& path, const FitOptions&)> load_all = {};
  /// Returns the input of a model for tokens. It reads no file of data.
  std::function<ModelInput(const FitOptions&)> token_input = {};
  /// Returns whether the data has a part of its own to validate on. It looks for files, and reads none. If empty, there
  /// is no such part.
  std::function<bool(const std::string& path)> has_val_part = {};

  /// The options that these data use and other data do not.
  std::vector<std::string> options = {};
  /// Options whose defaults are others for these data.
  DataDefaults defaults = {};
  /// Returns more of them, which depend on the data. It reads the header of a file at most, and leaves errors to load().
  std::function<DataDefaults(const std::string& path)> defaults_of = {};

  bool takes(std::string_view option) const {
    return std::find(options.begin(), options.end(), option) != options.end();
  }
  /// Returns "idx:DIR".
  std::string form() const { return argument.empty() ? name : name + ":" + argument; }
};

/// Splits off the random part that is held out for validation, as random_split() does.
/// Errors: c10::ValueError that names the data if it has too few samples.
std::pair<std::shared_ptr<const Dataset>, std::shared_ptr<const Dataset>> hold_out(
    const std::shared_ptr<const Dataset>& dataset, const FitOptions& options);

/// Errors: c10::ValueError that names --shift and the data if images of this size could disappear.
void check_shift(const FitOptions& options, int64_t height, int64_t width);

/// Warns if most of the numbers of classes have no sample: a model gets an output for each of them.
/// Shape of `target`: int64 [n], from 0 to `classes` - 1. `name` begins the warning.
void warn_of_unused_classes(const at::Tensor& target, int64_t classes, const std::string& name);

/// Every kind of data, in the order of the help.
const std::vector<DataKind>& data_kinds();

/// Returns the row that `data`, such as "idx:mnist", belongs to, or null.
const DataKind* find_data_kind(const std::string& data);

/// Returns what follows the colon of `data`, such as "mnist".
std::string path_of_data(const std::string& data);

/// Whether `path` is a folder. A path that cannot be looked at is none.
bool is_folder(const std::filesystem::path& path);

// The rows, a file for each kind of file.
DataKind digits_kind();
DataKind chat_kind();
DataKind cifar10_kind();
DataKind cifar100_kind();
DataKind csv_kind();
DataKind idx_kind();
DataKind images_kind();
DataKind npy_kind();
DataKind text_kind();
DataKind tokens_kind();

}  // namespace mantissa::cli
