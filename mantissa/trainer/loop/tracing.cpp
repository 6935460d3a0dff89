// Where the NaN came from, as the Trainer asks and tells it: which windows are run again, and what is worth a
// warning.
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <torch/nn/module.h>

#include "mantissa/core/error_message.h"
#include "mantissa/trainer/loop/logging_into_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// The scale that never moves; unset: there is none, or it finds itself.
std::optional<std::string> fixed_loss_scale(const TrainerOptions& options) {
  const auto& given = options.precision_options.loss_scale;
  return given && *given != "dynamic" && *given != "none" ? given : std::nullopt;
}

}  // namespace

bool Trainer::note_for_replay(Task& task, const Batch& batch, bool begins_window) {
  if (begins_window) {
    window_.clear();
    before_window_.reset();
    if (options_.transactional) before_window_.emplace(task.module());
  }
  if (!options_.trace_nonfinite || traces_left_ == 0) return false;
  window_.push_back({batch, progress_.batches, ReplayPoint(task.module())});
  return true;
}

void Trainer::trace_window(Task& task) {
  if (origin_ || traces_left_ == 0) return;
  MeanMetrics seen_already;
  const LoggingInto scope(logging_, seen_already);
  std::vector<WindowBatch> batches;
  for (const NotedBatch& noted : window_) {
    const auto forward_and_loss = [this, &task, &noted] {
      at::Tensor loss;
      {
        const Scope forward = precision_->forward_context();
        loss = task.training_step(noted.batch, noted.index);
      }
      TORCH_CHECK(loss.defined(), "training_step() of batch ", noted.index, " gave no loss the second time");
      const at::Tensor scale = precision_->loss_scale();
      return scale.defined() ? loss / accumulate_ * scale.to(loss.device()) : loss / accumulate_;
    };
    batches.push_back({forward_and_loss, &noted.before});
  }
  std::optional<WindowOrigin> found;
  std::string failure =
      "gave finite gradients the second time: nondeterministic operations, or what changes gradients after "
      "the "
      "backward pass (a hook, on_after_backward)";
  try {
    found = trace_nonfinite_window(task.module(), batches);
  } catch (const std::exception& error) {  // the training itself is sound
    failure = "could not be run again: " + message_of(error);
  }
  if (!found) {
    --traces_left_;
    TORCH_WARN("trace_nonfinite: the window that ends with batch ", progress_.batches, " of epoch ",
               progress_.epoch, " ", failure);
    return;
  }
  origin_ = found->origin;
  origin_is_new_ = true;
  report_origin(window_[found->batch].index);
}

void Trainer::report_origin(int64_t batch_index) {
  const std::string where =
      "batch " + std::to_string(batch_index) + " of epoch " + std::to_string(progress_.epoch) + ": ";
  const bool is_scale =
      origin_->cause == NonFiniteCause::kLossScale || origin_->cause == NonFiniteCause::kAccumulation;
  const std::optional<std::string> fixed = fixed_loss_scale(options_);
  if (is_scale && precision_->traits().scales_loss && !fixed) {
    if (++overflows_in_a_row_ % TrainerOptions::kOverflowsInARow != 0) {
      if (std::exchange(told_of_scale_, true)) return;
      TORCH_WARN(where, "the step was skipped, since ",
                 origin_->backward ? "a gradient of " + origin_->op : "the loss", " at the loss scale ",
                 precision_->loss_scale().item<double>(), " is beyond ", c10::toString(origin_->result.dtype),
                 ". The scaler lowers the scale by itself, which is how it finds a fitting one; this is "
                 "reported again only "
                 "when ",
                 TrainerOptions::kOverflowsInARow, " steps in a row are skipped");
      return;
    }
    origin_->cure =
        std::to_string(overflows_in_a_row_) +
        " steps in a row were skipped, each at a lower scale: it is this part and not the scale. Run it "
        "in float32, or train in bf16, whose range is float32's";
  } else if (is_scale && fixed) {
    origin_->cure =
        "the loss scale is fixed at " + *fixed +
        " (--loss-scale, PrecisionOptions::loss_scale), which is too high for this gradient: give a "
        "lower one, or dynamic, which finds it by itself";
  } else if (is_scale) {
    origin_->cure =
        "the loss is not scaled, so this gradient is too large by itself: clamp what makes it, run this part "
        "in "
        "float32, or train in bf16, whose range is float32's";
  }
  --traces_left_;
  if (origin_->cause == NonFiniteCause::kParameter) {
    traces_left_ = 0;
    origin_->cure =
        (progress_.steps == skipped_steps_.count()
             ? "it was so before the first step: look at the file that the weights were loaded from, or at "
               "how they are initialized"
             : "an earlier step broke it: stop, and go back to a checkpoint from before") +
        std::string(". Nothing that follows can be right, and no later batch is traced");
  }
  // The same fault in batch after batch is one fault.
  const std::string cause(to_string(origin_->cause));
  const std::string what = (origin_->backward ? "backward: " : "forward: ") + origin_->op +
                           (origin_->inside_module ? " in " : " after ") +
                           (origin_->module.empty() ? "the root module" : origin_->module);
  if (overflows_in_a_row_ == 0 && !told_of_.insert(what + cause).second) {
    TORCH_WARN(where, "again ", what, ": ", cause);
    return;
  }
  TORCH_WARN(where, origin_->to_string());
}

}  // namespace mantissa
