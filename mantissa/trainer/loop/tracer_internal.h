#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mantissa/data/batch.h"
#include "mantissa/precision/precision.h"
#include "mantissa/trace/replay_point.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_part_internal.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

/// Implements TrainerOptions::trace_nonfinite and transactional. Keeps the state from before an accumulation
/// window, runs a window again whose loss, gradients or step are not finite, and decides which warnings to give. Its
/// state is what it has reported, so that a resumed run does not report it again. A window is not part of the
/// state, because a resumed run begins its window anew.
class Tracer final : public RunPart {
 public:
  /// Runs the forward pass of a batch as it ran the first time, and returns the loss as training_step() does.
  using Forward = std::function<at::Tensor(const Batch& batch, int64_t batch_index)>;

  Tracer(const TrainerOptions& options, Precision& precision, const Progress& progress, Forward forward)
      : options_(options), precision_(precision), progress_(progress), forward_(std::move(forward)) {}

  /// Called before the first forward pass of a window of at most `batches` batches.
  void begin_window(torch::nn::Module& module, int64_t batches);
  /// Called before the forward pass of each batch.
  void begin_batch(const torch::nn::Module& module, const Batch& batch);
  /// Called after its backward pass: an earlier second forward pass would change batch norm's statistics too
  /// soon.
  /// `loss`: undefined for a batch that was left out.
  /// Sync:   reads the loss of a batch that is kept for a replay.
  void end_batch(torch::nn::Module& module, const at::Tensor& loss);
  /// Called before the step, when the gradients are in the loss's own units.
  /// Sync: if the mode does not scale the loss, reads whether the gradients are finite.
  void check_gradients(torch::nn::Module& module, torch::optim::Optimizer& optimizer);
  /// Called after the step.
  /// Sync: with either option, reads whether the step was skipped.
  void end_window(torch::nn::Module& module, const StepResult& step);
  /// Drops everything that is kept of a window.
  void clear();
  /// Returns the origin found since the last call, if any.
  std::optional<NonFiniteOrigin> take_new_origin();

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  struct KeptBatch {
    Batch batch;
    int64_t index = 0;
    ReplayPoint before;
  };

  void trace(torch::nn::Module& module);
  void report(int64_t batch_index);

  const TrainerOptions& options_;
  Precision& precision_;
  const Progress& progress_;
  Forward forward_;
  int64_t window_size_ = 1;
  std::vector<KeptBatch> window_;
  bool is_batch_kept_ = false;
  std::optional<ReplayPoint> before_window_;
  std::optional<NonFiniteOrigin> origin_;  ///< the newest
  bool is_traced_ = false;                 ///< whether origin_ is of this window, which is traced once
  bool is_origin_new_ = false;
  int traces_left_ = TrainerOptions::kMaxTraces;
  int64_t overflows_in_a_row_ = 0;  ///< skipped steps whose gradients were too large for the loss scale
  bool has_warned_of_scale_ = false;
  std::set<std::string> reported_;  ///< origins reported so far: operation, place and cause
};

}  // namespace mantissa
