#include <algorithm>
#include <fmt/format.h>
#include <random>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/background_writer.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/held_folder.h"
#include "mantissa/trainer/callbacks/checkpoint_keeper_internal.h"
#include "mantissa/trainer/callbacks/checkpoint_name_internal.h"
#include "mantissa/trainer/callbacks/failure_of_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// An id for this run's checkpoints; names alone are often the same in several runs.
std::string new_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// Checks a checkpoint's name from a state that somebody may have changed: it must not lead out of the
/// folder.
const std::string& checked_name(const StateReader& name_reader, const std::string& name) {
  if (name.find('/') != std::string::npos || name.starts_with("."))
    name_reader.fail("'" + name + "' is not a checkpoint name");
  return name;
}

}  // namespace

ModelCheckpoint::Keeper::Keeper(ModelCheckpointOptions options)
    : options_(std::move(options)), dirpath_(options_.dirpath) {}

void ModelCheckpoint::Keeper::on_fit_start(Trainer& trainer, const FitPlan& plan) {
  if (trainer.options().fast_dev_run || !trainer.is_global_zero()) return;
  dirpath_ = options_.dirpath;
  rescued_.clear();
  lost_.clear();
  std::error_code error;
  std::filesystem::create_directories(dirpath_, error);
  TORCH_CHECK(!error, "ModelCheckpoint: cannot create the folder '", dirpath_.string(),
              "': ", error.message(), "; choose another dirpath");
  lock_ = std::make_unique<FolderLock>(dirpath_);
  folder_ = std::make_unique<HeldFolder>(dirpath_);
  remove_leftovers(dirpath_);
  if (options_.async) writer_ = std::make_unique<BackgroundWriter>();
  outcome_ = std::make_shared<Outcome>();
  state_ = {};
  state_.run = new_run_id();
  batches_per_epoch_ = plan.batches_per_epoch;
  last_time_ = Clock::now();
}

void ModelCheckpoint::Keeper::on_train_start(Trainer& trainer) {
  if (!lock_) return;
  reconcile_with_folder(trainer);
  is_training_ = true;
}

bool ModelCheckpoint::Keeper::is_checkpoint_due(const TrainBatch& batch) const {
  if (!lock_ || !batch.stepped) return false;
  const bool by_steps =
      options_.every_n_train_steps > 0 && batch.global_step % options_.every_n_train_steps == 0;
  const bool by_time =
      options_.train_time_interval && Clock::now() - last_time_ >= *options_.train_time_interval;
  return by_steps || by_time;
}

void ModelCheckpoint::Keeper::on_checkpoint_due(Trainer& trainer) {
  save(trainer, trainer.metric_now(options_.monitor));
}

void ModelCheckpoint::Keeper::on_validation_end(Trainer& trainer) {
  if (trainer.is_sanity_checking() || trainer.stage() != Stage::kFit) return;
  if (trainer.progress().batches == batches_per_epoch_) return;  // the end of the epoch saves
  if (options_.every_n_epochs == 0 || (trainer.progress().epoch + 1) % options_.every_n_epochs != 0) return;
  if (const auto score = trainer.metric_now(options_.monitor)) save(trainer, score);
}

void ModelCheckpoint::Keeper::on_epoch_end(Trainer& trainer, int64_t epoch) {
  if (trainer.options().fast_dev_run || options_.every_n_epochs == 0 ||
      (epoch + 1) % options_.every_n_epochs != 0)
    return;
  // The first validation may still be to come, or a signal may have cut it short.
  const bool is_measured =
      trainer.progress().validated_batches >= 0 || trainer.options().check_val_every_n_epoch == 1;
  const Metrics& all = trainer.callback_metrics();
  TORCH_CHECK_VALUE(options_.monitor.empty() || all.contains(options_.monitor) || !is_measured ||
                        trainer.interrupted_by() != 0,
                    "ModelCheckpoint: the monitor '", options_.monitor, "' was not logged; logged were ",
                    join_names(keys_of(all)), did_you_mean(options_.monitor, keys_of(all)));
  save(trainer, trainer.metric_now(options_.monitor));
}

void ModelCheckpoint::Keeper::on_train_end(Trainer& trainer) {
  if (options_.save_last) save(trainer, trainer.metric_now(options_.monitor));
  if (writer_) writer_->flush();
  // The writer has finished. If the folder is lost, the last checkpoint is saved in another one.
  if (lock_ && folder_->is_lost()) save(trainer, trainer.metric_now(options_.monitor));
  is_training_ = false;  // weights that callbacks set from now on are not for resuming
}

void ModelCheckpoint::Keeper::on_exception(Trainer& trainer) {
  // Without a step there is nothing new. After a failed step a metric may no longer match the weights.
  if (options_.save_on_exception && is_training_ && trainer.progress().steps > 0) save(trainer, std::nullopt);
}

void ModelCheckpoint::Keeper::teardown() {
  writer_.reset();  // waits for everything that was posted
  is_training_ = false;
  if (outcome_) undo_failed_writes();
  for (const std::string& name : std::exchange(state_.to_remove, {})) {
    const std::string failure = failure_of([&] { remove_checkpoint(dirpath_ / name); });
    if (!failure.empty()) {
      TORCH_WARN("ModelCheckpoint: an older checkpoint could not be removed: ", failure);
    }
  }
  lock_.reset();
  folder_.reset();
  if (!outcome_) return;
  const std::string failure = std::exchange(outcome_->failure, {});
  TORCH_CHECK(failure.empty(), "ModelCheckpoint: the run's last checkpoint could not be written: ", failure);
}

void ModelCheckpoint::Keeper::save(Trainer& trainer, std::optional<double> score) {
  if (!lock_) return;  // fast_dev_run, or another process saves
  const auto& callbacks = trainer.options().callbacks;
  const auto finds_it_good = [&](const auto& callback) { return callback->is_state_good(trainer); };
  if (!std::all_of(callbacks.begin(), callbacks.end(), finds_it_good)) return;
  if (writer_) writer_->flush();  // avoids two copies, and makes failures known
  undo_failed_writes();
  if (folder_->is_lost()) take_another_folder();
  const FitProgress progress = trainer.resumes_at();
  const std::array<int64_t, 3> now{progress.steps, progress.epoch, progress.batches};
  const bool is_saved = now == state_.last_saved;
  // A state may have been saved at its step before it was validated. Now it may be one of the best, and a
  // resumed run need not validate it again.
  const bool is_ranked = state_.is_scored || !score;
  if (is_saved && is_ranked && progress.validated_batches == state_.last_validated) return;
  if (is_saved && !trainer.resumes_exactly()) {
    if (!is_ranked) rank_last(*score);
    return;
  }
  const State before = state_;
  try {
    write(trainer, score, now);
  } catch (...) {  // the copy may run out of memory
    state_ = before;
    throw;
  }
  fail_if_folder_was_lost();
}

/// A run must not train for hours without a checkpoint that can be found. If no folder can be created, the
/// case is like a full disk: the writes fail, training continues, and a later attempt may succeed.
void ModelCheckpoint::Keeper::take_another_folder() {
  const std::string failure = failure_of([&] {
    const std::filesystem::path lost = dirpath_;
    dirpath_ = folder_->replace();
    rescued_ = dirpath_;
    lost_ = lost;
    lock_ = std::make_unique<FolderLock>(dirpath_);
  });
  if (!failure.empty()) {
    TORCH_WARN("ModelCheckpoint: ", failure);
    return;
  }
  // The new folder has none of this run's checkpoints.
  state_.best.clear();
  state_.taken.clear();
  state_.to_remove.clear();
  state_.last_path.clear();
  state_.last_step = -1;
  state_.last_saved.reset();
  note_best();
}

void ModelCheckpoint::Keeper::fail_if_folder_was_lost() {
  if (lost_.empty()) return;
  if (writer_) writer_->flush();
  {
    const std::lock_guard lock(outcome_->mutex);
    if (!outcome_->failure.empty()) return;  // no room here either; a later attempt may succeed
  }
  const std::filesystem::path lost = std::exchange(lost_, {});
  TORCH_CHECK(false, "ModelCheckpoint: the folder '", lost.string(),
              "' was removed, moved or replaced during the run, so the run ends; resume from '",
              state_.last_path.string(), "', which has the run's full state");
}

void ModelCheckpoint::Keeper::write(Trainer& trainer, std::optional<double> score,
                                    const std::array<int64_t, 3>& now) {
  const std::string name = name_for(trainer, score);
  Write write{.name = name, .last = state_.last_path, .before = {}, .dropped = {}};
  if (const auto kept = state_.best.find(name); kept != state_.best.end())
    write.before.emplace_back(name, kept->second);
  keep(name, score, write);
  if (!options_.save_last && !state_.best.contains(name) && lost_.empty()) return;
  state_.last_saved = now;
  state_.last_validated = trainer.progress().validated_batches;
  state_.is_scored = score.has_value();
  if (!state_.last_path.empty()) write.dropped.insert(state_.last_path.filename().string());
  write.dropped.merge(std::exchange(state_.to_remove, {}));
  state_.last_path = dirpath_ / name;
  if (options_.save_top_k == -1) state_.taken.insert(name);
  std::erase_if(write.dropped, [&](const std::string& other) {
    return other == name || state_.best.contains(other) || options_.save_top_k == -1;
  });
  const auto job = [&trainer, outcome = outcome_, dirpath = dirpath_, write](const Checkpoint& checkpoint) {
    const std::string failure = failure_of([&] {
      trainer.save_logs();
      // A link would be followed to a checkpoint that is not this run's.
      std::error_code error;
      if (std::filesystem::is_symlink(dirpath / write.name, error))
        std::filesystem::remove(dirpath / write.name, error);
      save_checkpoint(dirpath / write.name, checkpoint);
    });
    // Older checkpoints are removed only now that the new one is complete.
    std::map<std::string, std::string> not_removed;
    if (failure.empty())
      for (const std::string& other : write.dropped) {
        const std::string reason = failure_of([&] { remove_checkpoint(dirpath / other); });
        if (!reason.empty()) not_removed.emplace(other, reason);
      }
    const std::lock_guard lock(outcome->mutex);
    const bool failed_before = !std::exchange(outcome->failure, failure).empty();
    for (const auto& [other, reason] : not_removed) {
      outcome->not_removed.insert(other);
      if (!outcome->reported.insert(other).second) continue;
      TORCH_WARN("ModelCheckpoint: an older checkpoint could not be removed yet: ", reason);
    }
    if (failure.empty()) return;
    outcome->failed = write;
    if (failed_before) return;  // a full disk is one fault, however many checkpoints fail
    TORCH_WARN(
        "ModelCheckpoint: a checkpoint could not be written, and training continues without it. Later "
        "checkpoints are still attempted; another failure is reported only after a successful write: ",
        failure);
  };
  if (writer_) {
    writer_->post([job, copy = std::make_shared<Checkpoint>(snapshot(trainer.checkpoint()))] { job(*copy); });
  } else {
    job(trainer.checkpoint());
  }
  last_time_ = Clock::now();
}

/// As in Lightning, a name of a kept checkpoint, or of another run's, gets "-v1" and so on, unless that
/// checkpoint is about to be removed.
std::string ModelCheckpoint::Keeper::name_for(const Trainer& trainer, std::optional<double> score) {
  const std::string base = name_of(trainer);
  const bool is_the_same_step = base == state_.last_base && trainer.progress().steps == state_.last_step;
  state_.last_base = base;
  state_.last_step = trainer.progress().steps;
  if (is_the_same_step) return state_.last_name;
  state_.last_name = base;
  const auto worst = worst_of_the_best();
  const bool is_full =
      options_.save_top_k > 0 && static_cast<int64_t>(state_.best.size()) >= options_.save_top_k;
  const bool displaces = is_full && (options_.monitor.empty() || score) &&
                         is_better({score.value_or(0), state_.order}, worst->second);
  const auto is_taken = [&](const std::string& name) {
    return state_.taken.contains(name) ||
           (state_.best.contains(name) && !(displaces && worst->first == name));
  };
  for (int version = 1; is_taken(state_.last_name); ++version)
    state_.last_name = base + "-v" + std::to_string(version);
  return state_.last_name;
}

std::string ModelCheckpoint::Keeper::name_of(const Trainer& trainer) const {
  const FitProgress& progress = trainer.progress();
  // An epoch that has just ended uses its own number, not the next one's.
  const int64_t epoch = progress.batches == 0 && progress.epoch > 0 ? progress.epoch - 1 : progress.epoch;
  return fill_in_checkpoint_name(options_.filename, [&](const std::string& name, const std::string& format) {
    if (name == "epoch") return fmt::format(fmt::runtime(format), epoch);
    if (name == "step") return fmt::format(fmt::runtime(format), progress.steps);
    const auto found = trainer.callback_metrics().find(name);
    return found == trainer.callback_metrics().end() ? std::string("none")
                                                     : fmt::format(fmt::runtime(format), found->second);
  });
}

StateDict ModelCheckpoint::Keeper::state_dict() const {
  StateDict best;
  for (const auto& [name, kept] : state_.best)
    best.emplace(name, StateDict{{"score", kept.score}, {"order", kept.order}});
  return {{"best", std::move(best)},
          {"run", state_.run},
          {"last_model", state_.last_path.filename().string()},
          {"last_step", state_.last_step},
          {"last_filename", state_.last_base},
          {"order", state_.order}};
}

// reconcile_with_folder() finds out which of them still exist.
void ModelCheckpoint::Keeper::load_state_dict(const StateReader& state) {
  std::map<std::string, Kept> best;
  const StateReader saved = state.at("best");
  for (const auto& [name, value] : saved.to_dict()) {
    const StateReader kept = saved.at(name);
    best[checked_name(kept, name)] = {kept.at("score").to_double(), kept.at("order").to_count()};
  }
  const StateReader last_model = state.at("last_model");
  const std::string last = checked_name(last_model, last_model.to_string());
  const int64_t last_step = state.at("last_step").to_int(-1, kMaxCount), order = state.at("order").to_count();
  const std::string last_base = state.at("last_filename").to_string(), run = state.at("run").to_string();
  state_.run = run;
  state_.last_base = last_base;
  state_.last_step = last_step;
  state_.last_name = last;
  state_.order = order;
  state_.best = std::move(best);
  state_.last_path = last.empty() ? std::filesystem::path() : dirpath_ / last;
  note_best();
}

}  // namespace mantissa
