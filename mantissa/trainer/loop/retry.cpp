// A window whose gradients have overflowed: computes it again at the lower loss scale.
#include <cmath>
#include <cstdint>
#include <utility>

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "mantissa/trainer/loop/agreement_internal.h"
#include "mantissa/trainer/loop/fit_run_internal.h"

namespace mantissa {

void FitRun::keep_batch(const Batch& batch, int64_t batch_index) {
  window_.push_back({batch, batch_index, ReplayPoint(task_.module())});
}

/// A loss that is not finite has gradients that are not, whatever the scale. Each process has a loss of its own.
bool FitRun::can_retry() const {
  bool is_finite = true;
  for (const KeptBatch& kept : window_)
    is_finite = is_finite && (!kept.loss.defined() || std::isfinite(kept.loss.item<double>()));
  return max_of_processes(strategy_, {is_finite ? 0 : 1}).front() == 0;
}

StepResult FitRun::retry(const StepResult& overflowed) {
  if (!can_retry()) return overflowed;
  const auto scale_is_at_least_1 = [this] {
    const at::Tensor scale = precision_.loss_scale();  // a user's own mode may have none
    return scale.defined() && scale.item<double>() >= 1;
  };
  const StateDict lowered_once = precision_.state_dict();
  MeanMetrics logged_already;
  const LoggingInto scope(*this, {&logged_already});
  StepResult step = overflowed;
  for (int retry = 0; retry < TrainerOptions::kMaxRetries && scale_is_at_least_1(); ++retry) {
    progress_.add_retry();
    for (const KeptBatch& kept : window_) {
      kept.before.restore();
      const bool is_first = &kept == &window_.front(), is_last = &kept == &window_.back();
      compute_gradients(kept.batch, kept.index, is_first, is_last);
    }
    step = take_step();
    if (step.cause() != SkipCause::kNonFiniteGradients) return step;
  }
  // The scale was not the cause, so the next windows need not pay for it.
  precision_.load_state_dict(StateReader(lowered_once));
  return step;
}

}  // namespace mantissa
