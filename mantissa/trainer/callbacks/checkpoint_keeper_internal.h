#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/core/state_dict.h"
#include "mantissa/io/background_writer.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/held_folder.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"

namespace mantissa {

/// The work of a ModelCheckpoint: writes checkpoints (checkpoint_keeper.cpp) and decides which of them to keep
/// (kept_checkpoints.cpp). Its hooks have the names of the callback's.
class ModelCheckpoint::Keeper {
 public:
  /// `options`: checked.
  explicit Keeper(ModelCheckpointOptions options);

  const ModelCheckpointOptions& options() const { return options_; }
  const std::filesystem::path& best_model_path() const { return state_.best_path; }
  const std::filesystem::path& last_model_path() const { return state_.last_path; }
  const std::filesystem::path& rescued_dirpath() const { return rescued_; }
  std::optional<double> best_model_score() const { return state_.best_score; }

  void on_fit_start(Trainer& trainer, const FitPlan& plan);
  void on_train_start(Trainer& trainer);
  bool is_checkpoint_due(const TrainBatch& batch) const;
  void on_checkpoint_due(Trainer& trainer);
  void on_validation_end(Trainer& trainer);
  void on_epoch_end(Trainer& trainer, int64_t epoch);
  void on_train_end(Trainer& trainer);
  void on_exception(Trainer& trainer);
  void teardown();
  StateDict state_dict() const;
  void load_state_dict(const StateReader& state);

 private:
  struct Kept {
    double score = 0;
    int64_t order = 0;  ///< the higher one is better if scores are equal
  };
  /// A checkpoint that is being written, and the state to restore if the write fails.
  struct Write {
    std::string name;
    std::filesystem::path last;                        ///< the newest checkpoint before it
    std::vector<std::pair<std::string, Kept>> before;  ///< the best checkpoints that it displaced
    std::set<std::string> dropped;                     ///< checkpoints to remove once it is complete
  };
  /// Shared with the writer's thread.
  struct Outcome {
    std::mutex mutex;
    std::string failure;                          ///< why the last write failed, or empty
    std::optional<Write> failed;                  ///< the last write, if it failed and that is not undone yet
    std::set<std::string> not_removed, reported;  ///< older checkpoints that could not be removed
  };
  /// The state of one fit.
  struct State {
    std::string run = {};                   ///< identifies this run's checkpoints
    std::map<std::string, Kept> best = {};  ///< at most save_top_k, by name
    std::set<std::string> taken = {};       ///< others' checkpoints; where all are kept, also its own
    std::set<std::string> to_remove = {};   ///< checkpoints that could not be removed yet
    std::filesystem::path best_path = {}, last_path = {};
    std::optional<double> best_score = {};
    std::string last_base = {}, last_name = {};  ///< by the pattern, and after "-v1" is appended
    int64_t last_step = -1, order = 0;
    std::optional<std::array<int64_t, 3>> last_saved = {};  ///< steps, epoch and batch
    int64_t last_validated = -1;                            ///< validated_batches at that save
    bool is_scored = false;                                 ///< whether that save had a score
  };
  using Clock = std::chrono::steady_clock;

  /// `score`: the monitor's value on the current weights; unset if it was not measured on them.
  void save(Trainer& trainer, std::optional<double> score);
  void write(Trainer& trainer, std::optional<double> score, const std::array<int64_t, 3>& now);
  void rank_last(double score);
  void load_newer_own_state(int64_t steps);
  void reconcile_with_folder(const Trainer& trainer);
  void undo_failed_writes();
  void take_another_folder();
  void fail_if_folder_was_lost();
  std::string name_for(const Trainer& trainer, std::optional<double> score);
  std::string name_of(const Trainer& trainer) const;
  /// Adds the checkpoint to the best ones, and those that it displaces to `write`.
  void keep(const std::string& name, std::optional<double> score, Write& write);
  void note_best();
  std::map<std::string, Kept>::const_iterator worst_of_the_best() const;
  bool is_better(const Kept& a, const Kept& b) const;

  ModelCheckpointOptions options_;
  std::filesystem::path dirpath_;         ///< current folder: options_.dirpath unless that was lost
  std::filesystem::path rescued_, lost_;  ///< lost_: not reported yet
  std::unique_ptr<HeldFolder> folder_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<BackgroundWriter> writer_;
  State state_;
  int64_t batches_per_epoch_ = 0;
  bool is_training_ = false;
  Clock::time_point last_time_;
  std::shared_ptr<Outcome> outcome_;
};

}  // namespace mantissa
