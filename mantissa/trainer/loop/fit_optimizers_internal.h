#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_metrics_internal.h"
#include "mantissa/trainer/loop/run_part_internal.h"
#include "mantissa/trainer/task.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

/// The optimizers of a fit, their schedules, and the gradients that wait for a step. Load it when the precision
/// has its state.
class FitOptimizers final : public RunPart {
 public:
  FitOptimizers(Task& task, Precision& precision) : task_(task), precision_(precision) {}

  /// Errors: c10::ValueError and c10::TypeError for optimizers that do not fit together or do not fit the
  ///         options.
  void set_up(const TrainerOptions& options);
  bool are_set_up() const { return !configs_.empty(); }
  std::vector<OptimizerConfig>& configs() { return configs_; }
  const std::vector<OptimizerConfig>& configs() const { return configs_; }
  /// The optimizer of automatic optimization.
  torch::optim::Optimizer& first() const { return *configs_.front().optimizer; }

  void begin_epoch();
  /// Records a manual_backward(). Its gradients may belong to any of the optimizers.
  void note_manual_backward() { waiting_.assign(waiting_.size(), true); }
  void note_step(const OptimizerConfig& config, const StepResult& step);
  /// Called after a step of automatic optimization. Reads whether `step` was skipped only if a schedule needs
  /// it.
  void advance_step_schedules(const StepResult& step, const Progress& progress);
  /// Called after a complete epoch of automatic optimization.
  /// Errors: c10::ValueError for a plateau schedule whose monitor was never logged.
  void advance_epoch_schedules(const Progress& progress, const RunMetrics& metrics);

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  /// Whether an optimizer took a step in this epoch, so that its schedule advances.
  bool has_stepped(size_t optimizer) const;
  /// Returns a predicate: whether the model's weights or the mode's state hold an optimizer's parameter.
  std::function<bool(const at::Tensor&)> parameters_kept_elsewhere() const;
  /// Gradients that manual_backward() has computed and no step has used.
  StateList waiting_gradients() const;
  /// Loads the gradients of each optimizer whose step can use them. Returns whether it has dropped others.
  bool load_waiting_gradients(const StateReader& state);

  Task& task_;
  Precision& precision_;
  bool is_automatic_ = true;
  std::vector<OptimizerConfig> configs_;
  // One entry per optimizer.
  std::vector<int64_t> epoch_steps_;       ///< steps in this epoch
  std::vector<SkippedSteps> epoch_skips_;  ///< skipped steps in this epoch
  std::vector<bool> waiting_;              ///< whether manual_backward() came after its last step
};

}  // namespace mantissa
