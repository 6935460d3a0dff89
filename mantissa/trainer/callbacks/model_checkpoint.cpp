#include "mantissa/trainer/callbacks/model_checkpoint.h"

#include <fmt/format.h>
#include <functional>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/trainer/callbacks/checkpoint_keeper_internal.h"
#include "mantissa/trainer/callbacks/checkpoint_name_internal.h"

namespace mantissa {

std::string fill_in_checkpoint_name(
    const std::string& pattern,
    const std::function<std::string(const std::string& name, const std::string& format)>& value_of) {
  std::string name;
  for (size_t i = 0;;) {
    const size_t open = pattern.find('{', i), close = pattern.find('}', open);
    if (open == std::string::npos || close == std::string::npos) return name.append(pattern, i);
    name.append(pattern, i, open - i);
    const std::string inside = pattern.substr(open + 1, close - open - 1);
    const size_t colon = inside.find(':');
    try {
      name += value_of(inside.substr(0, colon),
                       colon == std::string::npos ? "{}" : fmt::format("{{{}}}", inside.substr(colon)));
    } catch (const fmt::format_error& error) {
      TORCH_CHECK_VALUE(false, "ModelCheckpoint: filename '", pattern, "': ", error.what(), " in {", inside,
                        "}; epoch and step are whole numbers, and metrics are not");
    }
    i = close + 1;
  }
}

namespace {

/// Errors: c10::ValueError for options that do not fit together.
ModelCheckpointOptions checked(ModelCheckpointOptions options) {
  TORCH_CHECK_VALUE(options.mode == "min" || options.mode == "max", "ModelCheckpoint: unknown mode '",
                    options.mode, "'", did_you_mean(options.mode, {"min", "max"}), "; choose min or max");
  TORCH_CHECK_VALUE(options.save_top_k >= -1, "ModelCheckpoint: save_top_k=", options.save_top_k,
                    "; give a count, or -1 to keep all");
  TORCH_CHECK_VALUE(options.every_n_epochs >= 0 && options.every_n_train_steps >= 0,
                    "ModelCheckpoint: every_n_epochs=", options.every_n_epochs,
                    ", every_n_train_steps=", options.every_n_train_steps,
                    "; give counts, or 0 for not at all");
  TORCH_CHECK_VALUE(options.save_top_k != 0 || options.save_last,
                    "ModelCheckpoint: save_top_k=0 without save_last keeps nothing; leave the callback out");
  TORCH_CHECK_VALUE(!options.dirpath.empty(),
                    "ModelCheckpoint: dirpath is empty; name a folder, or leave it out");
  const std::string example =
      fill_in_checkpoint_name(options.filename, [](const std::string& name, const std::string& format) {
        return name == "epoch" || name == "step" ? fmt::format(fmt::runtime(format), 1)
                                                 : fmt::format(fmt::runtime(format), 1.0);
      });
  TORCH_CHECK_VALUE(!example.empty() && example.find('/') == std::string::npos && example.front() != '.',
                    "ModelCheckpoint: filename '", options.filename,
                    "' is not a folder name; leave out slashes and a leading dot, and set dirpath");
  constexpr size_t kLongest = 180;  // of 255 bytes, less those of temporary names and larger numbers
  TORCH_CHECK_VALUE(example.size() <= kLongest, "ModelCheckpoint: filename '", options.filename,
                    "' gives names of ", example.size(), " bytes; leave it at ", kLongest);
  options.dirpath = std::filesystem::absolute(options.dirpath);  // the working directory may change
  return options;
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options)
    : keeper_(std::make_unique<Keeper>(checked(std::move(options)))) {}

ModelCheckpoint::~ModelCheckpoint() = default;

std::string ModelCheckpoint::state_key() const {
  const ModelCheckpointOptions& options = keeper_->options();
  return options.monitor.empty() ? Callback::state_key()
                                 : Callback::state_key() + "(" + options.monitor + ", " + options.mode + ")";
}

const std::filesystem::path& ModelCheckpoint::best_model_path() const { return keeper_->best_model_path(); }
const std::filesystem::path& ModelCheckpoint::last_model_path() const { return keeper_->last_model_path(); }
const std::filesystem::path& ModelCheckpoint::rescued_dirpath() const { return keeper_->rescued_dirpath(); }
std::optional<double> ModelCheckpoint::best_model_score() const { return keeper_->best_model_score(); }

void ModelCheckpoint::on_fit_start(Trainer& trainer, const FitPlan& plan) {
  keeper_->on_fit_start(trainer, plan);
}
void ModelCheckpoint::on_train_start(Trainer& trainer) { keeper_->on_train_start(trainer); }
bool ModelCheckpoint::is_checkpoint_due(const Trainer& /*trainer*/, const TrainBatch& batch) const {
  return keeper_->is_checkpoint_due(batch);
}
void ModelCheckpoint::on_checkpoint_due(Trainer& trainer) { keeper_->on_checkpoint_due(trainer); }
void ModelCheckpoint::on_validation_end(Trainer& trainer) { keeper_->on_validation_end(trainer); }
void ModelCheckpoint::on_epoch_end(Trainer& trainer, int64_t epoch, int64_t /*global_step*/,
                                   const Metrics& /*metrics*/) {
  keeper_->on_epoch_end(trainer, epoch);
}
void ModelCheckpoint::on_train_end(Trainer& trainer) { keeper_->on_train_end(trainer); }
void ModelCheckpoint::on_exception(Trainer& trainer, const std::exception_ptr& /*exception*/) {
  keeper_->on_exception(trainer);
}
void ModelCheckpoint::teardown(Trainer& /*trainer*/, Stage /*stage*/) { keeper_->teardown(); }

StateDict ModelCheckpoint::state_dict() const { return keeper_->state_dict(); }
void ModelCheckpoint::load_state_dict(const StateReader& state) { keeper_->load_state_dict(state); }

}  // namespace mantissa
