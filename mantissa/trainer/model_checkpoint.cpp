#include "mantissa/trainer/model_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/background_writer.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.mode == "min" || options_.mode == "max", "ModelCheckpoint: mode '", options_.mode,
                    "' is not one; choose min or max");
  TORCH_CHECK_VALUE(options_.save_top_k >= -1, "ModelCheckpoint: save_top_k=", options_.save_top_k,
                    "; give a count, or -1 to keep all");
  TORCH_CHECK_VALUE(options_.every_n_epochs >= 0 && options_.every_n_train_steps >= 0,
                    "ModelCheckpoint: every_n_epochs=", options_.every_n_epochs, ", every_n_train_steps=",
                    options_.every_n_train_steps, "; give counts, or 0 for not at all");
  TORCH_CHECK_VALUE(options_.save_top_k != 0 || options_.save_last,
                    "ModelCheckpoint: save_top_k=0 without save_last keeps nothing; leave the callback out");
  TORCH_CHECK_VALUE(!options_.filename.empty() && options_.filename.find('/') == std::string::npos &&
                        options_.filename.front() != '.',
                    "ModelCheckpoint: filename '", options_.filename,
                    "' is no name of a folder; leave out slashes and a leading dot, and set dirpath");
}

ModelCheckpoint::~ModelCheckpoint() = default;

void ModelCheckpoint::on_fit_start(Trainer& /*trainer*/, const FitPlan& /*plan*/) {
  std::error_code error;
  std::filesystem::create_directories(options_.dirpath, error);
  TORCH_CHECK(!error, "ModelCheckpoint: cannot make the folder '", options_.dirpath.string(),
              "': ", error.message(), "; choose another dirpath");
  lock_ = std::make_unique<FolderLock>(options_.dirpath);
  remove_leftovers(options_.dirpath);
  if (options_.async) writer_ = std::make_unique<BackgroundWriter>();
  last_step_ = last_batches_ = -1;
  last_time_ = Clock::now();
  failure_.clear();
}

void ModelCheckpoint::on_train_batch_end(Trainer& trainer, const TrainBatch& batch) {
  if (!batch.stepped) return;
  const bool by_steps =
      options_.every_n_train_steps > 0 && batch.global_step % options_.every_n_train_steps == 0;
  const bool by_time =
      options_.train_time_interval && Clock::now() - last_time_ >= *options_.train_time_interval;
  if (by_steps || by_time) save(trainer, /*must_have_metric=*/false);
}

void ModelCheckpoint::on_validation_end(Trainer& trainer) {
  if (trainer.is_sanity_checking() || trainer.stage() != Stage::kFit || options_.monitor.empty()) return;
  if (options_.every_n_epochs == 0 || (trainer.progress().epoch + 1) % options_.every_n_epochs != 0) return;
  if (trainer.callback_metrics().contains(options_.monitor)) save(trainer, false);
}

void ModelCheckpoint::on_epoch_end(Trainer& trainer, int64_t epoch, int64_t /*global_step*/,
                                   const Metrics& /*metrics*/) {
  if (options_.every_n_epochs > 0 && (epoch + 1) % options_.every_n_epochs == 0)
    save(trainer, /*must_have_metric=*/true);
}

void ModelCheckpoint::on_train_end(Trainer& trainer) {
  if (options_.save_last) save(trainer, /*must_have_metric=*/false);
}

void ModelCheckpoint::on_exception(Trainer& trainer, const std::exception_ptr& /*exception*/) {
  // Before on_fit_start() there is nothing to save, and without a step nothing new.
  if (!lock_ || !options_.save_on_exception || trainer.stage() != Stage::kFit ||
      trainer.progress().steps == 0)
    return;
  save(trainer, /*must_have_metric=*/false);
}

void ModelCheckpoint::teardown(Trainer& /*trainer*/, Stage /*stage*/) {
  if (writer_) {
    try {
      writer_->flush();
    } catch (...) {
      note_failure();
    }
    writer_.reset();
  }
  lock_.reset();
  TORCH_CHECK(failure_.empty(), "ModelCheckpoint: the run's last checkpoint could not be written: ", failure_,
              std::filesystem::is_directory(last_path_)
                  ? "; the last one that was is '" + last_path_.string() + "'"
                  : "");
}

void ModelCheckpoint::save(Trainer& trainer, bool must_have_metric) {
  const FitProgress& progress = trainer.progress();
  if (progress.steps == last_step_ && progress.total_batches == last_batches_) return;  // it is saved
  std::optional<double> score;
  if (!options_.monitor.empty()) {
    const Metrics& metrics = trainer.callback_metrics();
    const auto found = metrics.find(options_.monitor);
    std::vector<std::string> names;
    for (const auto& [name, value] : metrics) names.push_back(name);
    TORCH_CHECK_VALUE(found != metrics.end() || !must_have_metric, "ModelCheckpoint: the monitor '",
                      options_.monitor, "' was not logged; logged were ", join_names(names),
                      did_you_mean(options_.monitor, names));
    if (found != metrics.end()) score = found->second;
  }
  if (!options_.save_last && !options_.monitor.empty() && !score) return;
  const std::string name = name_of(trainer);
  last_step_ = progress.steps;
  last_batches_ = progress.total_batches;
  last_time_ = Clock::now();
  const std::filesystem::path path = options_.dirpath / name, before = last_path_;
  last_path_ = path;
  std::vector<std::string> dropped;
  if (before.filename() != name && !before.empty()) dropped.push_back(before.filename().string());
  const std::vector<std::string> out = keep(name, score);
  dropped.insert(dropped.end(), out.begin(), out.end());
  std::erase_if(dropped, [&](const std::string& other) {
    return other == name || best_.contains(other) || options_.save_top_k == -1;
  });
  // Only when the new one is whole may the older ones go.
  const auto job = [path, dropped, dirpath = options_.dirpath](const Checkpoint& checkpoint) {
    save_checkpoint(path, checkpoint);
    for (const std::string& other : dropped) remove_checkpoint(dirpath / other);
  };
  try {
    if (writer_) {
      writer_->wait_for_room();
      const auto copy = std::make_shared<Checkpoint>(snapshot(trainer.checkpoint()));
      writer_->post([job, copy] { job(*copy); });
    } else {
      job(trainer.checkpoint());
    }
    failure_.clear();
  } catch (const c10::Error&) {
    note_failure();
  }
}

void ModelCheckpoint::note_failure() {
  try {
    throw;
  } catch (const c10::Error& error) {
    failure_ = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  TORCH_WARN("ModelCheckpoint: a checkpoint could not be written, and training goes on without it: ", failure_);
}

std::string ModelCheckpoint::name_of(const Trainer& trainer) const {
  const FitProgress& progress = trainer.progress();
  std::string name;
  const std::string& pattern = options_.filename;
  for (size_t i = 0; i < pattern.size();) {
    const size_t open = pattern.find('{', i), close = pattern.find('}', open);
    if (open == std::string::npos || close == std::string::npos) return name + pattern.substr(i);
    name += pattern.substr(i, open - i);
    const std::string inside = pattern.substr(open + 1, close - open - 1);
    const size_t colon = inside.find(':');
    const std::string key = inside.substr(0, colon);
    const std::string format = colon == std::string::npos ? "{}" : "{" + inside.substr(colon) + "}";
    try {
      if (key == "epoch") {
        name += fmt::format(fmt::runtime(format), progress.epoch);
      } else if (key == "step") {
        name += fmt::format(fmt::runtime(format), progress.steps);
      } else {
        const auto found = trainer.callback_metrics().find(key);
        name += found == trainer.callback_metrics().end() ? "none" : fmt::format(fmt::runtime(format), found->second);
      }
    } catch (const fmt::format_error& error) {
      TORCH_CHECK_VALUE(false, "ModelCheckpoint: filename '", pattern, "': ", error.what(), " in {", inside, "}");
    }
    i = close + 1;
  }
  return name;
}

bool ModelCheckpoint::is_better(const Kept& a, const Kept& b) const {
  // A nan is worse than anything, as Lightning has it.
  if (std::isnan(a.score) || std::isnan(b.score)) {
    if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
  } else if (a.score != b.score) {
    return options_.mode == "min" ? a.score < b.score : a.score > b.score;
  }
  return a.order > b.order;
}

std::vector<std::string> ModelCheckpoint::keep(const std::string& name, std::optional<double> score) {
  if (options_.save_top_k == 0 || (!options_.monitor.empty() && !score)) return {};
  best_[name] = {score.value_or(0), order_++};
  std::vector<std::string> dropped;
  while (options_.save_top_k > 0 && static_cast<int64_t>(best_.size()) > options_.save_top_k) {
    const auto worst = std::max_element(best_.begin(), best_.end(), [&](const auto& a, const auto& b) {
      return is_better(a.second, b.second);
    });
    dropped.push_back(worst->first);
    best_.erase(worst);
  }
  const auto best = std::min_element(best_.begin(), best_.end(), [&](const auto& a, const auto& b) {
    return is_better(a.second, b.second);
  });
  best_path_ = options_.dirpath / best->first;
  if (score) best_score_ = best->second.score;
  return dropped;
}

StateDict ModelCheckpoint::state_dict() const {
  StateDict best;
  for (const auto& [name, kept] : best_)
    best.emplace(name, StateDict{{"score", kept.score}, {"order", kept.order}});
  StateDict state{{"best", std::move(best)},
                  {"best_model", best_path_.filename().string()},
                  {"last_model", last_path_.filename().string()},
                  {"order", order_}};
  if (best_score_) state.emplace("best_model_score", *best_score_);
  return state;
}

void ModelCheckpoint::load_state_dict(const StateReader& state) {
  std::map<std::string, Kept> best;
  for (const auto& [name, value] : state.at("best").to_dict()) {
    const StateReader kept = state.at("best").at(name);
    // Removed by hand, or in another folder than the run that goes on: it cannot be kept.
    if (!std::filesystem::is_directory(options_.dirpath / name)) continue;
    best[name] = {kept.at("score").to_double(), kept.at("order").to_int()};
  }
  const auto in_folder = [&](const std::string& name) {
    return name.empty() ? std::filesystem::path() : options_.dirpath / name;
  };
  const std::string& last = state.at("last_model").to_string();
  order_ = state.at("order").to_int();
  best_ = std::move(best);
  best_path_ = in_folder(state.at("best_model").to_string());
  last_path_ = in_folder(last);
  best_score_.reset();
  if (const auto score = state.find("best_model_score")) best_score_ = score->to_double();
}

}  // namespace mantissa
