#pragma once

#include <array>
#include <chrono>
#include <cstdint>
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
#include "mantissa/trainer/callback.h"

namespace mantissa {

class BackgroundWriter;
class FolderLock;
class HeldFolder;

/// Names and meanings are Lightning's.
struct ModelCheckpointOptions {
  /// The folder for the checkpoints; it is created if missing.
  std::filesystem::path dirpath = "checkpoints";
  /// The name of a checkpoint. {epoch}, {step} and every metric in braces are replaced by their values, in
  /// the format after a colon if there is one: "{epoch}-{val_loss:.3f}". If another kept checkpoint has the
  /// name, "-v1" is appended.
  std::string filename = "epoch={epoch}-step={step}";
  /// The logged metric by which the best checkpoints are kept, among those saved where it was measured.
  /// Empty: the newest are the best.
  std::string monitor = {};
  /// "min": lower is better; "max".
  std::string mode = "min";
  /// Number of best checkpoints to keep; -1: all; 0: only the newest, with save_last.
  int64_t save_top_k = 1;
  /// Always keeps the newest checkpoint, so that a run can resume from it.
  bool save_last = true;
  /// Saves every N epochs, and with `monitor` after every validation in those epochs; 0: not by epochs.
  int64_t every_n_epochs = 1;
  /// Saves every N optimizer steps; 0: not by steps.
  int64_t every_n_train_steps = 0;
  /// Saves when this much time has passed since the last checkpoint.
  std::optional<std::chrono::milliseconds> train_time_interval = std::nullopt;
  /// Saves when an exception ends the run.
  bool save_on_exception = true;
  /// Writes while training continues, at the cost of a copy of the saved state.
  bool async = true;
};

/// Saves a run so that fit(..., ckpt_path) continues it bit for bit. Also saves at the end of a run, whatever
/// ended it.
///
/// If a checkpoint cannot be written, a warning reports it and training continues. If it was the run's last
/// checkpoint, fit() fails with the reason, after everything else has ended. Nothing is saved in
/// fast_dev_run, and while a callback's is_state_good() is false. Of several processes that train together, only the first one saves, and only its paths are
/// set. If the folder is removed or moved during the run, the next checkpoint is saved in another
/// folder (HeldFolder::replace()), and fit() ends with an error that names it.
///
/// Memory:  with `async`, one copy of weights and optimizer state while it is written.
/// Threads: writes in a thread of its own. The run locks the folder against other runs.
/// Errors:  c10::ValueError for options that do not fit together, in the constructor, and for a `monitor`
///          that was not logged; c10::Error at the start of a fit for a folder that cannot be created or that
///          another run has locked.
/// Source:  docs/checkpoints.md has the format.
/// Example: model_checkpoint_test.cpp, EveryMode.AResumedRunIsTheUninterruptedOne
class ModelCheckpoint final : public Callback, public Stateful {
 public:
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});
  ~ModelCheckpoint() override;

  /// The paths of the last fit; empty before its first checkpoint.
  const std::filesystem::path& best_model_path() const { return state_.best_path; }
  const std::filesystem::path& last_model_path() const { return state_.last_path; }
  /// The folder that replaced `dirpath` in the last fit; empty if `dirpath` was there all the time.
  const std::filesystem::path& rescued_dirpath() const { return rescued_; }
  /// Unset without `monitor`.
  std::optional<double> best_model_score() const { return state_.best_score; }

  /// The key is different for each monitor and mode.
  std::string state_key() const override;
  bool runs_last() const override { return true; }
  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_start(Trainer& trainer) override;
  bool is_checkpoint_due(const Trainer& trainer, const TrainBatch& batch) const override;
  void on_checkpoint_due(Trainer& trainer) override;
  void on_validation_end(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, int64_t epoch, int64_t global_step, const Metrics& metrics) override;
  void on_train_end(Trainer& trainer) override;
  void on_exception(Trainer& trainer, const std::exception_ptr& exception) override;
  void teardown(Trainer& trainer, Stage stage) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateReader& state) override;

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
    std::string failure;  ///< why the last write failed, or empty
    std::vector<Write> failed;
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
    std::optional<Kept> last_kept = {};          ///< the rank of the newest checkpoint
    std::string last_base = {}, last_name = {};  ///< by the pattern, and after "-v1" is appended
    int64_t last_step = -1, order = 0;
    std::array<int64_t, 3> last_saved{-1, -1, -1};  ///< steps, epoch and batch
    int64_t last_validated = -1;                    ///< validated_batches at that save
    bool is_scored = false;                         ///< whether that save had a score
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
