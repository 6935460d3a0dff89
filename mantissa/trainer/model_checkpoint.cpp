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
  } catch (...) {
    return message_of(std::current_exception());
  }
  return "";
}

/// `pattern` with what `value_of` gives for each name in braces: a text for a format such as "{:.3f}".
/// Errors: c10::ValueError for a format that does not fit.
std::string fill_in(
    const std::string& pattern,
    const std::function<std::string(const std::string& name, const std::string& format)>& value_of) {
  std::string name;
  for (size_t i = 0; i < pattern.size();) {
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
  return name;
}

/// A checkpoint's name in a state that somebody may have changed: nothing that leads out of the folder.
const std::string& checked_name(const StateReader& name_reader, const std::string& name) {
  if (name.find('/') != std::string::npos || name.starts_with("."))
    name_reader.fail("'" + name + "' is no name of a checkpoint");
  return name;
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
  fill_in(options_.filename, [](const std::string& name, const std::string& format) {
    return name == "epoch" || name == "step" ? fmt::format(fmt::runtime(format), 1)
                                             : fmt::format(fmt::runtime(format), 1.0);
  });
  options_.dirpath = std::filesystem::absolute(options_.dirpath);  // the program may go elsewhere meanwhile
}

std::string ModelCheckpoint::state_key() const {
  return options_.monitor.empty()
             ? Callback::state_key()
             : Callback::state_key() + "(" + options_.monitor + ", " + options_.mode + ")";
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
  best_.clear();
  saved_.clear();
  to_remove_.clear();
  best_path_.clear();
  last_path_.clear();
  last_kept_.reset();
  best_score_.reset();
  order_ = 0;
  last_base_.clear();
  last_step_ = -1;
  batches_per_epoch_ = plan.batches_per_epoch;
  last_saved_ = {-1, -1, -1};
  is_scored_ = false;
  last_time_ = Clock::now();
}

void ModelCheckpoint::on_train_start(Trainer& trainer) {
  if (!lock_ || trainer.progress().total_batches > 0) return;
  const size_t others = list_checkpoints(options_.dirpath).size();
  if (others > 0) {
    TORCH_WARN("ModelCheckpoint: '", options_.dirpath.string(), "' holds ", others,
               others == 1 ? " checkpoint" : " checkpoints",
               " of another run, and who goes on from the newest there may take one of them; give this run a "
               "folder of its own, or go on with that one (ckpt_path)");
  }
}

void ModelCheckpoint::on_train_batch_end(Trainer& trainer, const TrainBatch& batch) {
  if (!batch.stepped) return;
  const bool by_steps =
      options_.every_n_train_steps > 0 && batch.global_step % options_.every_n_train_steps == 0;
  const bool by_time =
      options_.train_time_interval && Clock::now() - last_time_ >= *options_.train_time_interval;
  if (by_steps || by_time) save(trainer, trainer.metric_now(options_.monitor));
}

void ModelCheckpoint::on_validation_end(Trainer& trainer) {
  if (trainer.is_sanity_checking() || trainer.stage() != Stage::kFit) return;
  if (trainer.progress().batches == batches_per_epoch_) return;  // the epoch ends, and is saved then
  if (options_.every_n_epochs == 0 || (trainer.progress().epoch + 1) % options_.every_n_epochs != 0) return;
  if (const auto score = trainer.metric_now(options_.monitor)) save(trainer, score);
}

void ModelCheckpoint::on_epoch_end(Trainer& trainer, int64_t epoch, int64_t /*global_step*/,
                                   const Metrics& /*metrics*/) {
  if (!lock_ || options_.every_n_epochs == 0 || (epoch + 1) % options_.every_n_epochs != 0) return;
  // The first validation may be still to come, or cut short by a signal.
  const bool is_measured =
      trainer.progress().validated_batches >= 0 || trainer.options().check_val_every_n_epoch == 1;
  const Metrics& all = trainer.callback_metrics();
  TORCH_CHECK_VALUE(options_.monitor.empty() || all.contains(options_.monitor) || !is_measured ||
                        InterruptScope::requested() != 0,
                    "ModelCheckpoint: the monitor '", options_.monitor, "' was not logged; logged were ",
                    join_names(keys_of(all)), did_you_mean(options_.monitor, keys_of(all)));
  save(trainer, trainer.metric_now(options_.monitor));
}

void ModelCheckpoint::on_train_end(Trainer& trainer) {
  if (options_.save_last) save(trainer, trainer.metric_now(options_.monitor));
}

void ModelCheckpoint::on_exception(Trainer& trainer, const std::exception_ptr& /*exception*/) {
  // Before on_fit_start() there is nothing to save, and without a step nothing new. A step that broke off may
  // have changed what was measured.
  if (options_.save_on_exception && trainer.stage() == Stage::kFit && trainer.progress().steps > 0)
    save(trainer, std::nullopt);
}

void ModelCheckpoint::teardown(Trainer& /*trainer*/, Stage /*stage*/) {
  writer_.reset();  // after all that it was given
  if (outcome_) take_back_failures();
  for (const std::string& name : std::exchange(to_remove_, {})) {
    const std::string failure = failure_of([&] { remove_checkpoint(options_.dirpath / name); });
    if (!failure.empty()) {
      TORCH_WARN("ModelCheckpoint: ", failure);
    }
  }
  lock_.reset();
  if (!outcome_) return;
  const std::string failure = std::exchange(outcome_->failure, {});
  TORCH_CHECK(failure.empty(), "ModelCheckpoint: the run's last checkpoint could not be written: ", failure);
}

void ModelCheckpoint::save(Trainer& trainer, std::optional<double> score) {
  if (!lock_) return;  // fast_dev_run
  const FitProgress& progress = trainer.progress();
  const std::array<int64_t, 3> now{progress.steps, progress.epoch, progress.batches};
  // Saved by its step before it was validated: once more, now that it may be one of the best.
  if (now == last_saved_ && (is_scored_ || !score)) return;
  if (writer_) writer_->wait_for_room();
  take_back_failures();
  const std::string name = name_for(trainer, score);
  Write write{.name = name, .last = last_path_, .before = {}, .dropped = {}};
  if (const auto kept = best_.find(name); kept != best_.end()) write.before.emplace_back(name, kept->second);
  const Kept rank{score.value_or(0), order_};
  keep(name, score, write);
  if (!options_.save_last && !best_.contains(name)) return;
  last_kept_ = options_.monitor.empty() || score ? std::optional(rank) : std::nullopt;
  last_saved_ = now;
  is_scored_ = score.has_value();
  last_time_ = Clock::now();
  if (!last_path_.empty()) write.dropped.push_back(last_path_.filename().string());
  write.dropped.insert(write.dropped.end(), to_remove_.begin(), to_remove_.end());
  to_remove_.clear();
  last_path_ = options_.dirpath / name;
  if (options_.save_top_k == -1) saved_.insert(name);
  std::sort(write.dropped.begin(), write.dropped.end());
  write.dropped.erase(std::unique(write.dropped.begin(), write.dropped.end()), write.dropped.end());
  std::erase_if(write.dropped, [&](const std::string& other) {
    return other == name || best_.contains(other) || options_.save_top_k == -1;
  });
  const auto job = [&trainer, outcome = outcome_, dirpath = options_.dirpath,
                    write](const Checkpoint& checkpoint) {
    const std::string failure = failure_of([&] {
      trainer.save_logs();
      save_checkpoint(dirpath / write.name, checkpoint);
      // Only now, when the new one is whole, may the older ones go.
      for (const std::string& other : write.dropped) remove_checkpoint(dirpath / other);
    });
    const std::lock_guard lock(outcome->mutex);
    outcome->failure = failure;
    if (failure.empty()) return;
    outcome->failed.push_back(write);
    TORCH_WARN("ModelCheckpoint: a checkpoint could not be written, and training goes on without it: ",
               failure);
  };
  if (!writer_) return job(trainer.checkpoint());
  writer_->post([job, copy = std::make_shared<Checkpoint>(snapshot(trainer.checkpoint()))] { job(*copy); });
}

/// What could not be written is none of the best, and what should have gone for it is still there.
void ModelCheckpoint::take_back_failures() {
  std::vector<Write> failed;
  {
    const std::lock_guard lock(outcome_->mutex);
    failed = std::exchange(outcome_->failed, {});
  }
  for (auto write = failed.rbegin(); write != failed.rend(); ++write) {
    best_.erase(write->name);
    for (const auto& [name, kept] : write->before) best_[name] = kept;
    for (const std::string& name : write->dropped)
      if (!best_.contains(name)) to_remove_.push_back(name);
    if (last_path_ != options_.dirpath / write->name) continue;
    last_path_ = write->last;
    last_kept_.reset();
  }
  if (failed.empty()) return;
  // The newest was ranked when the failed one still passed for written.
  const std::string last = last_path_.filename().string();
  if (last_kept_ && options_.save_top_k != 0 && !last.empty()) best_[last] = *last_kept_;
  while (options_.save_top_k > 0 && static_cast<int64_t>(best_.size()) > options_.save_top_k) {
    const auto worst = worst_of_the_best();
    to_remove_.push_back(worst->first);
    best_.erase(worst);
  }
  std::erase_if(to_remove_, [&](const std::string& name) { return last == name || best_.contains(name); });
  last_saved_ = {-1, -1, -1};
  note_best();
}

/// Lightning's way: a name that one of the kept checkpoints has gets "-v1" and so on, unless that one goes.
std::string ModelCheckpoint::name_for(const Trainer& trainer, std::optional<double> score) {
  const std::string base = name_of(trainer);
  const bool is_the_same_step = base == last_base_ && trainer.progress().steps == last_step_;
  last_base_ = base;
  last_step_ = trainer.progress().steps;
  if (is_the_same_step) return last_name_;
  last_name_ = base;
  const auto worst = worst_of_the_best();
  const bool is_full = options_.save_top_k > 0 && static_cast<int64_t>(best_.size()) >= options_.save_top_k;
  const bool displaces =
      is_full && (options_.monitor.empty() || score) && is_better({score.value_or(0), order_}, worst->second);
  const auto is_taken = [&](const std::string& name) {
    return saved_.contains(name) || (best_.contains(name) && !(displaces && worst->first == name));
  };
  for (int version = 1; is_taken(last_name_); ++version) last_name_ = base + "-v" + std::to_string(version);
  return last_name_;
}

std::string ModelCheckpoint::name_of(const Trainer& trainer) const {
  const FitProgress& progress = trainer.progress();
  // Of an epoch that has just ended its own number, and not the next one's.
  const int64_t epoch = progress.batches == 0 && progress.epoch > 0 ? progress.epoch - 1 : progress.epoch;
  return fill_in(options_.filename, [&](const std::string& name, const std::string& format) {
    if (name == "epoch") return fmt::format(fmt::runtime(format), epoch);
    if (name == "step") return fmt::format(fmt::runtime(format), progress.steps);
    const auto found = trainer.callback_metrics().find(name);
    return found == trainer.callback_metrics().end() ? std::string("none")
                                                     : fmt::format(fmt::runtime(format), found->second);
  });
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

std::map<std::string, ModelCheckpoint::Kept>::const_iterator ModelCheckpoint::worst_of_the_best() const {
  return std::max_element(best_.begin(), best_.end(),
                          [&](const auto& a, const auto& b) { return is_better(a.second, b.second); });
}

void ModelCheckpoint::keep(const std::string& name, std::optional<double> score, Write& write) {
  if (options_.save_top_k == 0 || (!options_.monitor.empty() && !score)) return;
  best_[name] = {score.value_or(0), order_++};
  while (options_.save_top_k > 0 && static_cast<int64_t>(best_.size()) > options_.save_top_k) {
    const auto worst = worst_of_the_best();
    write.dropped.push_back(worst->first);
    if (worst->first != name) write.before.emplace_back(*worst);
    best_.erase(worst);
  }
  note_best();
}

void ModelCheckpoint::note_best() {
  best_path_.clear();
  best_score_.reset();
  const auto best = std::min_element(best_.begin(), best_.end(), [&](const auto& a, const auto& b) {
    return is_better(a.second, b.second);
  });
  if (best == best_.end()) return;
  best_path_ = options_.dirpath / best->first;
  if (!options_.monitor.empty()) best_score_ = best->second.score;
}

StateDict ModelCheckpoint::state_dict() const {
  StateDict best;
  for (const auto& [name, kept] : best_)
    best.emplace(name, StateDict{{"score", kept.score}, {"order", kept.order}});
  return {{"best", std::move(best)},
          {"last_model", last_path_.filename().string()},
          {"last_step", last_step_},
          {"last_filename", last_base_},
          {"order", order_}};
}

void ModelCheckpoint::load_state_dict(const StateReader& state) {
  // Removed by hand, or in another folder than the run that goes on: it cannot be kept.
  const auto is_here = [&](const std::string& name) {
    return !name.empty() && std::filesystem::is_directory(options_.dirpath / name);
  };
  std::map<std::string, Kept> best;
  const StateReader saved = state.at("best");
  for (const auto& [name, value] : saved.to_dict()) {
    const StateReader kept = saved.at(name);
    if (is_here(checked_name(kept, name)))
      best[name] = {kept.at("score").to_double(), kept.at("order").to_int()};
  }
  const StateReader last_model = state.at("last_model");
  const std::string last = checked_name(last_model, last_model.to_string());
  const int64_t last_step = state.at("last_step").to_int(), order = state.at("order").to_int();
  last_base_ = state.at("last_filename").to_string();
  last_step_ = last_step;
  last_name_ = last;
  order_ = order;
  best_ = std::move(best);
  last_path_ = is_here(last) ? options_.dirpath / last : std::filesystem::path();
  note_best();
}

}  // namespace mantissa
