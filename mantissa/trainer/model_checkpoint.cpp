#include "mantissa/trainer/model_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/error_message.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/background_writer.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/trainer/interrupt.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// What `write` throws, in words; "" if it does not.
std::string failure_of(const std::function<void()>& write) {
  try {
    write();
  } catch (const std::exception& error) {
    return message_of(error);
  }
  return "";
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.mode == "min" || options_.mode == "max", "ModelCheckpoint: mode '",
                    options_.mode, "' is not one; choose min or max");
  TORCH_CHECK_VALUE(options_.save_top_k >= -1, "ModelCheckpoint: save_top_k=", options_.save_top_k,
                    "; give a count, or -1 to keep all");
  TORCH_CHECK_VALUE(options_.every_n_epochs >= 0 && options_.every_n_train_steps >= 0,
                    "ModelCheckpoint: every_n_epochs=", options_.every_n_epochs,
                    ", every_n_train_steps=", options_.every_n_train_steps,
                    "; give counts, or 0 for not at all");
  TORCH_CHECK_VALUE(options_.save_top_k != 0 || options_.save_last,
                    "ModelCheckpoint: save_top_k=0 without save_last keeps nothing; leave the callback out");
  TORCH_CHECK_VALUE(!options_.filename.empty() && options_.filename.find('/') == std::string::npos &&
                        options_.filename.front() != '.',
                    "ModelCheckpoint: filename '", options_.filename,
                    "' is no name of a folder; leave out slashes and a leading dot, and set dirpath");
}

ModelCheckpoint::~ModelCheckpoint() = default;

void ModelCheckpoint::on_fit_start(Trainer& trainer, const FitPlan& plan) {
  if (trainer.options().fast_dev_run) return;
  std::error_code error;
  std::filesystem::create_directories(options_.dirpath, error);
  TORCH_CHECK(!error, "ModelCheckpoint: cannot make the folder '", options_.dirpath.string(),
              "': ", error.message(), "; choose another dirpath");
  lock_ = std::make_unique<FolderLock>(options_.dirpath);
  remove_leftovers(options_.dirpath);
  if (options_.async) writer_ = std::make_unique<BackgroundWriter>();
  outcome_ = std::make_shared<Outcome>();
  batches_per_epoch_ = plan.batches_per_epoch;
  last_saved_ = {-1, -1, -1};
  is_scored_ = false;
  last_time_ = Clock::now();
}

void ModelCheckpoint::on_train_batch_end(Trainer& trainer, const TrainBatch& batch) {
  if (!batch.stepped) return;
  const bool by_steps =
      options_.every_n_train_steps > 0 && batch.global_step % options_.every_n_train_steps == 0;
  const bool by_time =
      options_.train_time_interval && Clock::now() - last_time_ >= *options_.train_time_interval;
  // What was measured before is not the score of these weights.
  if (by_steps || by_time) save(trainer, std::nullopt);
}

void ModelCheckpoint::on_validation_end(Trainer& trainer) {
  if (trainer.is_sanity_checking() || trainer.stage() != Stage::kFit || options_.monitor.empty()) return;
  if (trainer.progress().batches == batches_per_epoch_) return;  // the epoch ends, and is saved then
  if (options_.every_n_epochs == 0 || (trainer.progress().epoch + 1) % options_.every_n_epochs != 0) return;
  if (const auto score = score_in(trainer.callback_metrics())) save(trainer, score);
}

void ModelCheckpoint::on_epoch_end(Trainer& trainer, int64_t epoch, int64_t /*global_step*/,
                                   const Metrics& metrics) {
  if (!lock_ || options_.every_n_epochs == 0 || (epoch + 1) % options_.every_n_epochs != 0) return;
  const std::optional<double> score = score_in(metrics);
  // The first validation may be still to come, or cut short by a signal.
  const bool is_measured =
      trainer.progress().validated_batches >= 0 || trainer.options().check_val_every_n_epoch == 1;
  const Metrics& all = trainer.callback_metrics();
  TORCH_CHECK_VALUE(options_.monitor.empty() || score || all.contains(options_.monitor) || !is_measured ||
                        InterruptScope::requested() != 0,
                    "ModelCheckpoint: the monitor '", options_.monitor, "' was not logged; logged were ",
                    join_names(keys_of(all)), did_you_mean(options_.monitor, keys_of(all)));
  save(trainer, score);
}

void ModelCheckpoint::on_train_end(Trainer& trainer) {
  if (!options_.save_last) return;
  // What a run ends on by itself is validated.
  save(trainer, InterruptScope::requested() == 0 ? score_in(trainer.callback_metrics()) : std::nullopt);
}

void ModelCheckpoint::on_exception(Trainer& trainer, const std::exception_ptr& /*exception*/) {
  // Before on_fit_start() there is nothing to save, and without a step nothing new.
  if (!options_.save_on_exception || trainer.stage() != Stage::kFit || trainer.progress().steps == 0) return;
  save(trainer, std::nullopt);
}

void ModelCheckpoint::teardown(Trainer& /*trainer*/, Stage /*stage*/) {
  writer_.reset();  // after all that it was given
  lock_.reset();
  const std::string failure = outcome_ ? std::exchange(outcome_->failure, {}) : "";
  TORCH_CHECK(failure.empty(), "ModelCheckpoint: the run's last checkpoint could not be written: ", failure);
}

std::optional<double> ModelCheckpoint::score_in(const Metrics& metrics) const {
  const auto found = metrics.find(options_.monitor);
  return found == metrics.end() ? std::nullopt : std::optional(found->second);
}

void ModelCheckpoint::save(Trainer& trainer, std::optional<double> score) {
  if (!lock_) return;  // fast_dev_run
  const FitProgress& progress = trainer.progress();
  const std::array<int64_t, 3> now{progress.steps, progress.epoch, progress.batches};
  // Saved by its step before it was validated: once more, now that it may be one of the best.
  if (now == last_saved_ && (is_scored_ || !score)) return;
  const std::string name = name_of(trainer);
  std::vector<std::string> dropped = keep(name, score);
  if (!options_.save_last && !best_.contains(name)) return;
  last_saved_ = now;
  is_scored_ = score.has_value();
  last_time_ = Clock::now();
  if (!last_path_.empty()) dropped.push_back(last_path_.filename().string());
  last_path_ = options_.dirpath / name;
  std::erase_if(dropped, [&](const std::string& other) {
    return other == name || best_.contains(other) || options_.save_top_k == -1;
  });
  const auto job = [&trainer, outcome = outcome_, dirpath = options_.dirpath, name,
                    dropped](const Checkpoint& checkpoint) {
    outcome->failure = failure_of([&] {
      trainer.save_logs();
      save_checkpoint(dirpath / name, checkpoint);
      // Only now, when the new one is whole, may the older ones go.
      for (const std::string& other : dropped) remove_checkpoint(dirpath / other);
    });
    if (outcome->failure.empty()) return;
    TORCH_WARN("ModelCheckpoint: a checkpoint could not be written, and training goes on without it: ",
               outcome->failure);
  };
  if (!writer_) return job(trainer.checkpoint());
  writer_->wait_for_room();
  writer_->post([job, copy = std::make_shared<Checkpoint>(snapshot(trainer.checkpoint()))] { job(*copy); });
}

std::string ModelCheckpoint::name_of(const Trainer& trainer) const {
  const FitProgress& progress = trainer.progress();
  // Of an epoch that has just ended its own number, and not the next one's.
  const int64_t epoch = progress.batches == 0 && progress.epoch > 0 ? progress.epoch - 1 : progress.epoch;
  std::string name;
  const std::string& pattern = options_.filename;
  for (size_t i = 0; i < pattern.size();) {
    const size_t open = pattern.find('{', i), close = pattern.find('}', open);
    if (open == std::string::npos || close == std::string::npos) return name.append(pattern, i);
    name.append(pattern, i, open - i);
    const std::string inside = pattern.substr(open + 1, close - open - 1);
    const size_t colon = inside.find(':');
    const std::string key = inside.substr(0, colon);
    const std::string format =
        colon == std::string::npos ? "{}" : fmt::format("{{{}}}", inside.substr(colon));
    try {
      if (key == "epoch") {
        name += fmt::format(fmt::runtime(format), epoch);
      } else if (key == "step") {
        name += fmt::format(fmt::runtime(format), progress.steps);
      } else {
        const auto found = trainer.callback_metrics().find(key);
        name += found == trainer.callback_metrics().end() ? "none"
                                                          : fmt::format(fmt::runtime(format), found->second);
      }
    } catch (const fmt::format_error& error) {
      TORCH_CHECK_VALUE(false, "ModelCheckpoint: filename '", pattern, "': ", error.what(), " in {", inside,
                        "}");
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
