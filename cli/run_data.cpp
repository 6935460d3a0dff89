#include "cli/run_data.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/labels.h"
#include "cli/option.h"
#include "cli/options/groups.h"
#include "mantissa/core/suggest.h"
#include "mantissa/data/images/mix.h"
#include "mantissa/data/images/shift.h"

namespace mantissa::cli {
namespace {

/// Returns the kind of `data`.
/// Errors: c10::ValueError for other data, with all forms.
const DataKind& kind_of(const std::string& data) {
  if (const DataKind* const kind = find_data_kind(data)) return *kind;
  std::vector<std::string> names, forms;
  for (const DataKind& kind : data_kinds()) names.push_back(kind.name), forms.push_back(kind.form());
  const std::string name = data.substr(0, data.find(':'));
  const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
  C10_THROW_ERROR(ValueError, c10::str("--data '", data, "' names no data",
                                       is_known ? "" : did_you_mean(name, names), "; write ", either(forms)));
}

/// Returns the data with the numbers that the classes have in the run of the options.
Data numbered(Data data, const FitOptions& o) {
  if (o.reads_labels) check_class_names(data.names.classes, "--data " + o.data);
  if (!o.reads_labels) data.names.classes.clear();  // those of other data say nothing about the run's
  if (o.names.classes.empty()) return data;
  for (auto* const part : {&data.train, &data.val})
    if (*part && o.reads_labels && !data.names.classes.empty())
      *part = number_as_in(o.names.classes, data.names.classes, *part, o.data);
  data.input.classes = std::ssize(o.names.classes);
  data.names = o.names;
  return data;
}

/// Returns whether an option changes these data, if it is on.
bool changes(const char* option, const FitOptions& o, const Data& data) {
  return kind_of(o.data).takes(option) && !data.has_features;
}

/// For a kind that does not take an option, warn_without_effect() has warned; whether arrays are rows of features shows only
/// now.
void warn_of_features(const char* option, const FitOptions& o, const Data& data) {
  if (data.has_features && kind_of(o.data).takes(option))
    TORCH_WARN(flag_of(option), " has no effect with --data ", o.data,
               ", which has rows of features and no images; leave it out");
}

/// Returns the parameter of CutMix, which is 0 where it is off.
double cutmix_alpha(const FitOptions& o, const Data& data) {
  return changes("cutmix", o, data) ? o.images.cutmix : 0;
}

bool is_mixed(const FitOptions& o, const Data& data) {
  return data.input.kind == InputKind::kImages && (o.images.mixup > 0 || cutmix_alpha(o, data) > 0);
}

/// Returns the changes to the images of a batch, or none.
/// Errors: c10::ValueError if the images are too small for them.
Transform augmentation(const FitOptions& o, const Data& data) {
  if (data.input.kind != InputKind::kImages) return {};
  Transform shift, mix;
  const bool shifts = o.images.shift > 0 && !data.is_augmented;
  if (shifts) warn_of_features("shift", o, data);
  if (o.images.cutmix > 0) warn_of_features("cutmix", o, data);
  if (shifts && changes("shift", o, data)) {
    check_shift(o, data.input.height, data.input.width);
    shift = shift_images(o.images.shift);
  }
  if (is_mixed(o, data))
    mix = mix_images({.num_classes = data.input.classes,
                      .mixup_alpha = o.images.mixup,
                      .cutmix_alpha = cutmix_alpha(o, data)});
  if (!shift || !mix) return shift ? shift : mix;
  return [shift, mix](Batch batch, const at::Generator& generator) {
    return mix(shift(std::move(batch), generator), generator);
  };
}

}  // namespace

ModelInput token_input(const FitOptions& o) {
  const DataKind& kind = kind_of(o.data);
  return kind.token_input ? kind.token_input(o)
                          : ModelInput{.kind = InputKind::kTokens, .context = o.context};
}

void check_data(const std::string& data) { kind_of(data); }

InputKind input_kind_of(const std::string& data) { return kind_of(data).input; }

std::string path_of_model(const std::string& model) {
  return is_model_path(model) ? model.substr(model.find(':') + 1) : "";
}

std::vector<std::string> inputs_of(const FitOptions& o) {
  return {path_of_data(o.data), path_of_model(o.model), o.tokenizer, o.weights, o.adapter};
}

FitOptions with_record(FitOptions o, const std::filesystem::path& folder) {
  DataRecord record = load_record(folder);
  o.names = std::move(record.names);
  o.sizes = record.sizes;
  return o;
}

Data load_data(const FitOptions& o) {
  Data data = kind_of(o.data).load(path_of_data(o.data), o);
  if (!data.val) std::tie(data.train, data.val) = hold_out(data.train, o);
  if (o.sizes) check_sizes(*o.sizes, data.sizes(), o.data);
  if (data.input.kind == InputKind::kImages && data.input.classes == 1)
    TORCH_WARN("--data ", o.data, " has one class only, so there is nothing to learn");
  return numbered(std::move(data), o);
}

Data load_all_data(const FitOptions& o) {
  const DataKind& kind = kind_of(o.data);
  if (kind.load_all) return numbered(kind.load_all(path_of_data(o.data), o), o);
  Data data = kind.load(path_of_data(o.data), o);
  if (!data.val) data.val = data.train;
  return numbered(std::move(data), o);
}

Labelled labelled_for_training(const FitOptions& o, const Data& data) {
  return {.data = data,
          .data_name = "--data " + o.data,
          .model = "--model " + o.model,
          .trains = true,
          .is_mixed = is_mixed(o, data),
          .takes_classes = kind_of(o.data).takes("classes")};
}

std::unique_ptr<Loader> train_loader(const FitOptions& o, const Data& data) {
  DataLoaderOptions options = o.loader;
  options.shuffle = true;
  options.seed = o.seed;
  if (data.draws_windows) {
    options.replacement = true;
    options.num_samples = std::max<int64_t>(1, data.train->size() / data.input.context);
  }
  options.transform = augmentation(o, data);
  return std::make_unique<DataLoader>(data.train, options);
}

std::unique_ptr<Loader> val_loader(const FitOptions& o, const Data& data) {
  DataLoaderOptions options = o.loader;
  options.batch_size = data.input.kind == InputKind::kTokens
                           ? 32
                           : 256;  // without gradients: larger than in training, always the same
  return std::make_unique<DataLoader>(data.val, options);
}

}  // namespace mantissa::cli
