#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"

namespace mantissa {

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
/// If a checkpoint cannot be written, a warning reports it and training continues. If it was the run's last checkpoint,
/// fit() fails with the reason, after everything else has ended. Nothing is saved in fast_dev_run, and while a
/// callback's is_state_good() is false. Of several processes that train together, only the first one saves, and only
/// its paths are set. If the folder is removed or moved during the run, the next checkpoint is saved in another folder
/// (HeldFolder::replace()), and fit() ends with an error that names it.
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
  const std::filesystem::path& best_model_path() const;
  const std::filesystem::path& last_model_path() const;
  /// The folder that replaced `dirpath` in the last fit; empty if `dirpath` was there all the time.
  const std::filesystem::path& rescued_dirpath() const;
  /// Unset without `monitor`.
  std::optional<double> best_model_score() const;

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
  class Keeper;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace mantissa
