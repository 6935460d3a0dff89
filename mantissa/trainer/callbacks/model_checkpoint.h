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
  /// The folder for the checkpoints; made where it is missing.
  std::filesystem::path dirpath = "checkpoints";
  /// A checkpoint's name. {epoch}, {step} and every metric in braces are replaced, by their value in a format
  /// if one stands behind a colon: "{epoch}-{val_loss:.3f}". One that another of the kept has gets "-v1"
  /// behind.
  std::string filename = "epoch={epoch}-step={step}";
  /// A logged metric by which the best ones are kept, of those saved where it was measured; empty: the newest
  /// are the best.
  std::string monitor = {};
  /// "min": lower is better; "max".
  std::string mode = "min";
  /// So many of the best are kept; -1: all; 0: none but the newest, with save_last.
  int64_t save_top_k = 1;
  /// The newest is always kept, so that a run can go on from it.
  bool save_last = true;
  /// Saves after every so many epochs, and with `monitor` after every validation in them; 0: not by epochs.
  int64_t every_n_epochs = 1;
  /// Saves after every so many optimizer steps; 0: not by steps.
  int64_t every_n_train_steps = 0;
  /// Saves when so long has passed since the last one.
  std::optional<std::chrono::milliseconds> train_time_interval = std::nullopt;
  /// Saves when an exception ends the run.
  bool save_on_exception = true;
  /// Writes while training goes on, at the cost of a copy of all that is saved.
  bool async = true;
};

/// Saves a run, so that fit(..., ckpt_path) goes on from there bit for bit; and at its end, whatever ended
/// it.
///
/// A checkpoint that cannot be written is warned of, and training goes on; if it was the run's last one,
/// fit() fails with the reason, after everything else has ended. Nothing is saved in fast_dev_run.
/// If somebody removes or moves the folder meanwhile, the next checkpoint is saved in another one
/// (HeldFolder::replace()), and fit() ends with an error that names it.
/// Memory:  with `async` one copy of weights and optimizer state while it is written.
/// Threads: writes in one of its own; the folder is this run's alone meanwhile.
/// Errors:  c10::ValueError for options that do not fit together, in the constructor, and for a `monitor`
///          that was not logged; at the start c10::Error for a folder that cannot be made or is another
///          run's.
/// Source:  docs/checkpoints.md has the format.
/// Example: model_checkpoint_test.cpp, ModelCheckpoint.AResumedRunIsTheUninterruptedOneInEveryMode
class ModelCheckpoint final : public Callback, public Stateful {
 public:
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});
  ~ModelCheckpoint() override;

  /// Of the last fit: empty before the first checkpoint.
  const std::filesystem::path& best_model_path() const { return state_.best_path; }
  const std::filesystem::path& last_model_path() const { return state_.last_path; }
  /// The folder that took the place of `dirpath` in the last fit; empty if `dirpath` was there all the time.
  const std::filesystem::path& rescued_dirpath() const { return rescued_; }
  /// Without `monitor`: none.
  std::optional<double> best_model_score() const { return state_.best_score; }

  /// One for each monitor and mode.
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
    int64_t order = 0;  ///< the later of two equal ones has the higher
  };
  /// A checkpoint on its way to the disk, and what to put back if it does not get there.
  struct Write {
    std::string name;
    std::filesystem::path last;                        ///< the newest before it
    std::vector<std::pair<std::string, Kept>> before;  ///< those of the best that it has displaced
    std::set<std::string> dropped;                     ///< what goes when it is whole
  };
  /// Also the writer's thread's.
  struct Outcome {
    std::mutex mutex;
    std::string failure;  ///< of the last one that was tried: "", or why it could not be written
    std::vector<Write> failed;
    std::set<std::string> stayed, told_of;  ///< older ones that could not be removed
  };
  /// Of a fit.
  struct State {
    std::string run = {};                   ///< tells this run's checkpoints from others
    std::map<std::string, Kept> best = {};  ///< at most save_top_k, by their names
    std::set<std::string> taken = {};      ///< names of others' checkpoints; where all are kept, also its own
    std::set<std::string> to_remove = {};  ///< those that could not be removed yet
    std::filesystem::path best_path = {}, last_path = {};
    std::optional<double> best_score = {};
    std::optional<Kept> last_kept = {};          ///< how the newest was ranked
    std::string last_base = {}, last_name = {};  ///< by the pattern, and what it became
    int64_t last_step = -1, order = 0;
    std::array<int64_t, 3> last_saved{-1, -1, -1};  ///< steps, epoch and batch
    int64_t last_validated = -1;                    ///< what validated_batches was then
    bool is_scored = false;                         ///< that one
  };
  using Clock = std::chrono::steady_clock;

  /// `score`: of the weights as they are; unset if they were not measured.
  void save(Trainer& trainer, std::optional<double> score);
  void write(Trainer& trainer, std::optional<double> score, const std::array<int64_t, 3>& now);
  void rank_last(double score);
  void learn_from_own_checkpoint(int64_t steps);
  void take_stock(const Trainer& trainer);
  void take_back_failures();
  void take_another_folder();
  void end_if_folder_was_lost();
  std::string name_for(const Trainer& trainer, std::optional<double> score);
  std::string name_of(const Trainer& trainer) const;
  /// Puts it among the best, and into `write` those that are no longer.
  void keep(const std::string& name, std::optional<double> score, Write& write);
  void note_best();
  std::map<std::string, Kept>::const_iterator worst_of_the_best() const;
  bool is_better(const Kept& a, const Kept& b) const;

  ModelCheckpointOptions options_;
  std::filesystem::path dirpath_;  ///< where it saves in this fit: options_.dirpath unless that was lost
  std::filesystem::path rescued_, lost_;  ///< lost_: not told of yet
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
