#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/io/checkpoint.h"
#include "mantissa/trace/replay_point.h"
#include "mantissa/trainer/loop/decisions_internal.h"
#include "mantissa/trainer/loop/fit_optimizers_internal.h"
#include "mantissa/trainer/loop/random_numbers_internal.h"
#include "mantissa/trainer/loop/saved_parts_internal.h"
#include "mantissa/trainer/loop/step_times_internal.h"
#include "mantissa/trainer/loop/tracer_internal.h"
#include "mantissa/trainer/loop/trainer_run_internal.h"

namespace mantissa {

/// One call of Trainer::fit(). The run consists of parts that own their state, and a loop that uses them.
class FitRun final : public TrainerRun {
 public:
  FitRun(Trainer& trainer, Task& task, GradientClipAlgorithm clip_algorithm);

  /// Checks the loaders, and that the options fit the task.
  /// Errors: c10::ValueError.
  void check(const Loader& train, const Loader* val) const;
  FitResult fit(Loader& train, Loader* val, const std::filesystem::path& ckpt_path);
  FitRun* as_fit() override { return this; }
  int interrupted_by() const override { return decisions_.interrupted_by(); }

  /// Implements Trainer::checkpoint().
  Checkpoint checkpoint();
  const std::vector<OptimizerConfig>& optimizers() const { return optimizers_.configs(); }

  // For a task with manual optimization, that is, a task that steps its optimizers itself.
  std::vector<TaskOptimizer>& task_optimizers() { return task_optimizers_; }
  void manual_backward(const at::Tensor& loss);
  StepResult manual_step(OptimizerConfig& config, const std::function<at::Tensor()>& closure);
  void clear_gradients(torch::optim::Optimizer& optimizer);

 private:
  // The epochs: fit_run.cpp.
  /// Chooses the batches of training and validation: the loaders' own, or the few of overfit_batches.
  void set_up_loaders(Loader& train, Loader* val);
  void set_up(const std::filesystem::path& ckpt_path);
  void set_up_epochs();
  void check_sanity();
  void train_epoch();
  /// Does everything that is due between two batches, such as validation. Returns whether training ends here.
  bool handle_boundary(const Boundary& boundary, const TrainBatch* done);
  Decision decide_between_epochs(bool epoch_is_over = false);
  void end_epoch(bool is_whole);
  void validate();
  FitResult result() const;

  // One batch: train_batch.cpp.
  TrainBatch train_batch(BatchTransfer& transfer, bool is_last_of_epoch);
  void step_automatically(const Batch& batch, TrainBatch& done);
  void step_with_line_search(const Batch& batch, TrainBatch& done);
  void step_manually(const Batch& batch, TrainBatch& done);
  at::Tensor forward(const Batch& batch, int64_t batch_index);
  /// Runs forward, backward and, after the last batch of a window, the reduction. Returns the loss, detached; undefined if the
  /// batch is left out.
  at::Tensor compute_gradients(const Batch& batch, int64_t batch_index, bool begins_window, bool ends_window);
  /// Unscales, clips and steps.
  StepResult take_step();
  /// Errors: c10::ValueError for a loss that is no scalar of the model; c10::Error without a loss for which
  ///         other processes wait.
  void check_loss(const at::Tensor& loss) const;
  /// Runs the hooks before a backward pass, and the pass. `is_reduced`: Strategy::post_backward() follows.
  void backward(const at::Tensor& loss, bool is_reduced);
  void after_backward();
  void before_step(torch::optim::Optimizer& optimizer);
  void end_window(const StepResult& step);
  void note_step(const OptimizerConfig& config, const StepResult& step);
  bool makes_row(bool ends_window) const;

  // A window whose gradients have overflowed: retry.cpp.
  void keep_batch(const Batch& batch, int64_t batch_index);
  /// Computes the window again until its gradients are finite. Returns the last step, which may be skipped, too.
  StepResult retry(const StepResult& overflowed);
  bool can_retry() const;

  // Checkpoints: resume.cpp.
  /// Returns the parts in the order in which they are loaded. The progress comes after the parts that may
  /// fail to load: if one of them fails, the run is still at its beginning and saves nothing.
  std::vector<RunPart*> parts();
  /// Reads the checkpoint at `path`, or the newest complete one in that folder.
  static Checkpoint read(const std::filesystem::path& path);
  void load_model(const Checkpoint& checkpoint, const std::string& from);
  void resume(const Checkpoint& checkpoint, const std::string& from);

  void release() override;
  bool is_cut_short() const override;
  void begin_validation() override;
  void end_validation() override;

  const GradientClipAlgorithm clip_algorithm_;
  const bool is_automatic_;
  const bool retries_overflows_;
  bool is_inside_training_step_ = false;
  bool has_samples_ = false;         ///< whether a batch of the epoch had any
  bool is_resuming_ = false;         ///< whether the run's parts still lack the checkpoint's state
  bool reduces_magnitudes_ = false;  ///< whether the precision has this run's Precision::MaxReduction
  /// The batches of overfit_batches. They outlive an exception in the fit, after which callbacks may still
  /// save the run.
  std::unique_ptr<Loader> first_batches_, same_batches_;
  Loader *train_ = nullptr, *val_ = nullptr;  ///< null before the setup and after the run
  int64_t batches_per_epoch_ = 0;
  int64_t window_size_ = 1;  ///< batches per accumulation window
  StepResult manual_step_;   ///< the last step of the current batch

  /// A batch of the open window, kept for a retry.
  struct KeptBatch {
    Batch batch;
    int64_t index = 0;
    ReplayPoint before;
    at::Tensor loss = {};  ///< undefined if it was left out
  };
  std::vector<KeptBatch> window_;

  FitOptimizers optimizers_;
  SavedPrecision saved_precision_;
  SavedObjects saved_objects_;
  SavedSettings saved_settings_;
  RandomNumbers random_numbers_;
  Decisions decisions_;
  Tracer tracer_;
  StepTimes step_times_;
  std::vector<TaskOptimizer> task_optimizers_;
};

}  // namespace mantissa
