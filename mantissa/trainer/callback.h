#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "mantissa/data/batch.h"
#include "mantissa/precision/precision.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trainer/metrics.h"

namespace mantissa {

class Trainer;
struct Checkpoint;
struct FitResult;

/// The kind of run, by the Trainer function that started it.
enum class Stage { kFit, kValidate, kTest, kPredict };

/// One training batch, as callbacks see it after its end.
struct TrainBatch {
  int64_t epoch = 0;        ///< from 0
  int64_t batch_index = 0;  ///< within the epoch, from 0
  int64_t global_step = 0;  ///< optimizer steps so far, skipped ones included
  /// 0-dim, detached, unscaled, not divided by the accumulation count; undefined if the batch was left out.
  at::Tensor loss;
  bool stepped = false;  ///< whether an optimizer step ended this batch
  StepResult step = {};  ///< set only if `stepped`; the batch's last step without automatic optimization
  /// The origin of the first inf or nan; only with TrainerOptions::trace_nonfinite.
  std::optional<NonFiniteOrigin> origin = {};
  double step_ms = 0;  ///< host time of the whole batch
};

/// The planned length of a fit, known before its first batch.
struct FitPlan {
  int64_t batches_per_epoch = 0;
  int64_t max_epochs = -1;  ///< -1: as many as max_steps needs
  int64_t max_steps = -1;   ///< -1: as many as max_epochs needs
};

/// Watches a run, and may end it (Trainer::stop()). Override the hooks that you need; their names are
/// Lightning's.
///
/// A fit:      setup [on_load_checkpoint] on_fit_start
///             [on_sanity_check_start VALIDATION on_sanity_check_end]
///             on_train_start EPOCH* on_train_end on_fit_end teardown
/// EPOCH:      on_train_epoch_start (BATCH [VALIDATION])* on_epoch_end
/// BATCH:      on_train_batch_start, the task's and the callbacks' on_before_zero_grad, on_before_backward,
///             on_after_backward, on_before_optimizer_step, on_train_batch_end, is_checkpoint_due
///             [on_checkpoint_due]
/// VALIDATION: on_validation_start on_validation_batch_end* on_validation_end
/// validate(): setup VALIDATION teardown; test() and predict() alike.
///
/// A callback may change the model's weights for the duration of a validation, and permanently at the end. It
/// must not change what training does next.
/// Errors: an exception ends the run, after on_exception() of every callback.
class Callback {
 public:
  virtual ~Callback() = default;
  /// The key of a Stateful callback's state in checkpoints; by default its class.
  virtual std::string state_key() const;
  /// Whether this callback is called after all others. A callback that saves the run needs this.
  virtual bool runs_last() const { return false; }
  virtual void setup(Trainer& /*trainer*/, Stage /*stage*/) {}
  virtual void on_fit_start(Trainer& /*trainer*/, const FitPlan& /*plan*/) {}
  virtual void on_sanity_check_start(Trainer& /*trainer*/) {}
  virtual void on_sanity_check_end(Trainer& /*trainer*/) {}
  virtual void on_train_start(Trainer& /*trainer*/) {}
  virtual void on_train_epoch_start(Trainer& /*trainer*/, int64_t /*epoch*/) {}
  virtual void on_train_batch_start(Trainer& /*trainer*/, const Batch& /*batch*/, int64_t /*batch_index*/) {}
  virtual void on_before_zero_grad(Trainer& /*trainer*/, torch::optim::Optimizer& /*optimizer*/) {}
  /// `loss` is scaled where the precision scales.
  virtual void on_before_backward(Trainer& /*trainer*/, const at::Tensor& /*loss*/) {}
  /// Gradients are still scaled.
  virtual void on_after_backward(Trainer& /*trainer*/) {}
  /// Gradients are unscaled (see Task) and not clipped yet.
  virtual void on_before_optimizer_step(Trainer& /*trainer*/, torch::optim::Optimizer& /*optimizer*/) {}
  virtual void on_train_batch_end(Trainer& /*trainer*/, const TrainBatch& /*batch*/) {}
  /// Whether the run should be saved between this batch and the next. Called after on_train_batch_end() of
  /// all callbacks. If one process returns true, all processes that train together save.
  virtual bool is_checkpoint_due(const Trainer& /*trainer*/, const TrainBatch& /*batch*/) const {
    return false;
  }
  /// Saves the run, after is_checkpoint_due() returned true.
  virtual void on_checkpoint_due(Trainer& /*trainer*/) {}
  /// Whether a run would do well to resume from its present state. While one callback says no, ModelCheckpoint saves nothing.
  virtual bool is_state_good(const Trainer& /*trainer*/) const { return true; }
  /// on_validation_start() and on_validation_end() enclose each pass over the validation data. After an
  /// exception, on_exception() is called instead of on_validation_end().
  virtual void on_validation_start(Trainer& /*trainer*/) {}
  virtual void on_validation_batch_end(Trainer& /*trainer*/, int64_t /*batch_index*/) {}
  virtual void on_validation_end(Trainer& /*trainer*/) {}
  virtual void on_test_start(Trainer& /*trainer*/) {}
  virtual void on_test_batch_end(Trainer& /*trainer*/, int64_t /*batch_index*/) {}
  virtual void on_test_end(Trainer& /*trainer*/) {}
  virtual void on_predict_start(Trainer& /*trainer*/) {}
  virtual void on_predict_batch_end(Trainer& /*trainer*/, const c10::IValue& /*prediction*/,
                                    int64_t /*batch_index*/) {}
  virtual void on_predict_end(Trainer& /*trainer*/) {}
  /// `metrics`: the training and validation metrics of this epoch.
  virtual void on_epoch_end(Trainer& /*trainer*/, int64_t /*epoch*/, int64_t /*global_step*/,
                            const Metrics& /*metrics*/) {}
  virtual void on_train_end(Trainer& /*trainer*/) {}
  virtual void on_fit_end(Trainer& /*trainer*/, const FitResult& /*result*/) {}
  /// Called when the checkpoint is otherwise complete; it has the states of Stateful callbacks by state_key()
  /// under "callbacks". Override it to save more, or to save weights other than the model's own.
  virtual void on_save_checkpoint(Trainer& /*trainer*/, Checkpoint& /*checkpoint*/) {}
  /// Called in a resumed run when the model has the checkpoint's weights, before the optimizers are set up.
  /// load_state_dict() is called later, after on_fit_start().
  virtual void on_load_checkpoint(Trainer& /*trainer*/, const Checkpoint& /*checkpoint*/) {}
  virtual void on_exception(Trainer& /*trainer*/, const std::exception_ptr& /*exception*/) {}
  /// The last hook of a run, also called after an exception. It is called once. What it throws ends the run
  /// with that error, after the teardown() of all others, and without on_exception().
  virtual void teardown(Trainer& /*trainer*/, Stage /*stage*/) {}
};

}  // namespace mantissa
