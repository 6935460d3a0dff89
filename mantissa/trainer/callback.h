#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "mantissa/precision/nonfinite_trace.h"
#include "mantissa/precision/precision.h"
#include "mantissa/trainer/metrics.h"

namespace mantissa {

class Trainer;
struct FitResult;

/// One training batch, as callbacks see it after it ended.
struct TrainBatch {
  int64_t epoch = 0;        ///< from 0
  int64_t batch_index = 0;  ///< within the epoch, from 0
  int64_t global_step = 0;  ///< optimizer steps so far, skipped ones included
  at::Tensor
      loss;  ///< 0-dim, detached, unscaled, not divided by the accumulation count; undefined if left out
  bool stepped = false;  ///< whether this batch ended an accumulation window
  StepResult step = {};  ///< only where `stepped`
  /// Where the first inf or nan came from; only with TrainerOptions::trace_nonfinite.
  std::optional<NonFiniteOrigin> origin = {};
  double step_ms = 0;  ///< host time of the whole batch
};

/// What a fit will do, known before its first batch.
struct FitPlan {
  int64_t batches_per_epoch = 0;
  int64_t max_epochs = -1;  ///< -1: as many as max_steps needs
  int64_t max_steps = -1;   ///< -1: as many as max_epochs needs
};

/// Watches a run. Override what is needed. A callback may change the model's weights for a validation and for
/// good at the end; what training does next it does not change.
/// Errors: an exception ends the run, after on_exception() of every callback.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_fit_start(const Trainer& /*trainer*/, const FitPlan& /*plan*/) {}
  virtual void on_train_epoch_start(int64_t /*epoch*/) {}
  virtual void on_train_batch_end(const Trainer& /*trainer*/, const TrainBatch& /*batch*/) {}
  /// Around each pass over the validation data; after an exception on_exception() comes instead of the
  /// second.
  virtual void on_validation_start(const Trainer& /*trainer*/) {}
  virtual void on_validation_end(const Trainer& /*trainer*/) {}
  /// `metrics`: this epoch's, training and validation.
  virtual void on_epoch_end(int64_t /*epoch*/, int64_t /*global_step*/, const Metrics& /*metrics*/) {}
  virtual void on_fit_end(const Trainer& /*trainer*/, const FitResult& /*result*/) {}
  virtual void on_exception() {}
};

}  // namespace mantissa
