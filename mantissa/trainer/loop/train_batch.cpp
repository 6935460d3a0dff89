// One batch: forward, backward and, where a window ends, the step; automatically or by the task itself.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/trainer/loop/logging_into_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// Sync: reads one number; where that is not finite, two of each gradient.
bool gradients_are_finite(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  at::Tensor total;
  for (const at::Tensor& parameter : main_params(optimizer)) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor gradient = parameter.grad().detach();
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.numel() == 0) continue;
    gradients.push_back(values.is_complex() ? at::view_as_real(values) : values);
    const at::Tensor sum = gradients.back().sum().to(at::kDouble);
    total = total.defined() ? total + sum.to(total.device()) : sum;
  }
  // A sum is the fastest look at a gradient: finite, it has only finite terms. The other way it may have
  // overflowed.
  if (!total.defined() || std::isfinite(total.item<double>())) return true;
  return std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
    const auto [low, high] = at::aminmax(gradient);
    return std::isfinite(low.item<double>()) && std::isfinite(high.item<double>());
  });
}

}  // namespace

TrainBatch Trainer::train_batch(Task& task, BatchTransfer& transfer, bool ends_window) {
  const auto start = Clock::now();
  end_row();  // the next one may be long in coming
  should_log_ = step_makes_row(ends_window);
  batch_row_.emplace();
  in_batch_ = in_step_ = true;
  TrainBatch done;
  done.epoch = progress_.epoch;
  done.batch_index = progress_.batches;
  const Batch batch = take(transfer);
  tell([&](Callback& c) { c.on_train_batch_start(*this, batch, progress_.batches); });
  batch_metrics_.reset();
  const LoggingInto scope(logging_, batch_metrics_);
  if (is_automatic_) {
    step_automatically(task, batch, ends_window, done);
  } else {
    step_manually(task, batch, done);
  }
  done.global_step = progress_.steps;
  if (done.loss.defined()) {
    batch_metrics_.add("train_loss", done.loss, batch_weight_);
    if (should_log_) note_step_value("train_loss", done.loss);
  }
  note_metrics(window_batches_ == 0);
  log_metrics(*std::exchange(batch_row_, std::nullopt));
  in_batch_ = false;
  done.step_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return done;
}

/// Not of a batch that threw, nor of a window that has not ended: a run that goes on has them again.
void Trainer::note_metrics(bool window_has_ended) {
  if (!window_has_ended) return window_metrics_.add(batch_metrics_);
  if (!window_metrics_.empty()) training_metrics_.add(std::exchange(window_metrics_, {}));
  training_metrics_.add(batch_metrics_);
}

void Trainer::step_automatically(Task& task, const Batch& batch, bool ends_window, TrainBatch& done) {
  torch::optim::Optimizer& optimizer = *optimizers_.front().optimizer;
  if (window_batches_ == 0) origin_.reset();
  if (has_line_search(optimizer)) {  // every batch is a window: check_optimizers() has seen to it
    done.step = precision_->optimizer_step(optimizer, [&] {
      done.loss = forward_and_backward(task, batch);
      if (done.loss.defined()) look_and_clip(task, optimizer);
      return done.loss;
    });
  } else {
    done.loss = forward_and_backward(task, batch);
    if (ends_window) {
      if (has_gradients(optimizer)) look_and_clip(task, optimizer);
      done.step = precision_->optimizer_step(optimizer);
    }
  }
  if (ends_window) {
    done.stepped = true;
    window_batches_ = 0;
    end_window(task, done.step);
  } else {
    ++window_batches_;
  }
  if (std::exchange(origin_is_new_, false)) done.origin = origin_;
}

void Trainer::end_window(Task& task, const StepResult& step) {
  // Only they read whether a fused optimizer has stepped.
  if (options_.trace_nonfinite) {
    if (step.cause() == SkipCause::kNonFiniteGradients) trace_window(task);
    if (!step.skipped()) overflows_in_a_row_ = 0;
  }
  if (before_window_ && step.skipped()) before_window_->restore_buffers();
  note_step(optimizers_.front(), step);
}

void Trainer::note_step(const OptimizerConfig& config, const StepResult& step) {
  ++progress_.steps;
  skipped_steps_.add(step);
  const auto index = static_cast<size_t>(&config - optimizers_.data());
  unstepped_[index] = false;
  ++epoch_steps_[index];
  epoch_skips_[index].add(step);
}

at::Tensor Trainer::forward_and_backward(Task& task, const Batch& batch) {
  torch::optim::Optimizer& optimizer = *optimizers_.front().optimizer;
  const bool begins_window = window_batches_ == 0;
  const at::AutoGradMode with_gradients(true);
  const bool is_noted = note_for_replay(task, batch, begins_window);
  at::Tensor loss;
  {
    const Scope forward = precision_->forward_context();
    loss = task.training_step(batch, progress_.batches);
  }
  if (begins_window) clear_gradients(optimizer);
  if (!loss.defined()) {
    if (is_noted) window_.pop_back();  // left out: it cannot be the one
    return loss;
  }
  TORCH_CHECK_VALUE(
      loss.numel() == 1 && loss.requires_grad(), "training_step() of batch ", progress_.batches, " of epoch ",
      progress_.epoch, " returned ", loss.numel() == 1 ? "a loss without a gradient" : "more than one number",
      "; return a scalar made from the model's parameters, or an undefined tensor to leave the batch out");
  backward(task, accumulate_ > 1 ? loss / accumulate_ : loss);
  // Not before: a second forward pass would change batch norm's statistics under the first one's backward pass.
  if (is_noted && !std::isfinite(loss.item<double>())) trace_window(task);
  return loss.detach();
}

void Trainer::look_and_clip(Task& task, torch::optim::Optimizer& optimizer) {
  precision_->unscale_gradients(optimizer);
  // A scaler drops the step, and the trace can wait until then; without one the step breaks the weights.
  const bool is_traced = !window_.empty() && !precision_->traits().scales_loss && !origin_;
  if (is_traced && !gradients_are_finite(optimizer)) trace_window(task);
  prepare_step(optimizer);
  precision_->clip_gradients(optimizer, options_.gradient_clip_val, clip_algorithm_);
}

void Trainer::backward(Task& task, const at::Tensor& loss) {
  precision_->backward(loss, [&](const at::Tensor& scaled) {
    task.on_before_backward(scaled);
    tell([&](Callback& c) { c.on_before_backward(*this, scaled); });
  });
  task.on_after_backward();
  tell([&](Callback& c) { c.on_after_backward(*this); });
}

void Trainer::clear_gradients(torch::optim::Optimizer& optimizer) {
  task_->on_before_zero_grad(optimizer);
  tell([&](Callback& c) { c.on_before_zero_grad(*this, optimizer); });
  optimizer.zero_grad();
}

void Trainer::prepare_step(torch::optim::Optimizer& optimizer) {
  task_->on_before_optimizer_step(optimizer);
  tell([&](Callback& c) { c.on_before_optimizer_step(*this, optimizer); });
}

void Trainer::step_manually(Task& task, const Batch& batch, TrainBatch& done) {
  const at::AutoGradMode with_gradients(true);
  manual_step_ = {};
  const int64_t steps_before = progress_.steps;
  {
    const Scope forward = precision_->forward_context();
    done.loss = task.training_step(batch, progress_.batches);
  }
  TORCH_CHECK_VALUE(!done.loss.defined() || done.loss.numel() == 1, "training_step() of batch ",
                    progress_.batches, " of epoch ", progress_.epoch,
                    " returned more than one number; return a scalar, to be shown, or an undefined tensor");
  if (done.loss.defined()) done.loss = done.loss.detach();
  done.stepped = progress_.steps > steps_before;
  done.step = manual_step_;
}

void Trainer::manual_backward(const at::Tensor& loss) {
  TORCH_CHECK(!is_automatic_ && logging_ == &batch_metrics_,
              "manual_backward: call it inside training_step() of a task whose automatic_optimization() is "
              "false; otherwise the Trainer calls backward() on the loss that training_step() returns");
  // It runs inside training_step(), and so inside the forward context's region; gradients are computed
  // outside of it, as they are in every other loop (spec 2.3).
  const Autocast off(device_.type(), {.enabled = false});
  unstepped_.assign(unstepped_.size(), true);  // which of them the loss is for, nobody knows
  backward(*task_, loss);
}

StepResult Trainer::manual_step(OptimizerConfig& config, const std::function<at::Tensor()>& closure) {
  TORCH_CHECK(!is_automatic_ && logging_ == &batch_metrics_,
              "TaskOptimizer::step: call it inside training_step() of a task whose automatic_optimization() "
              "is false; otherwise the Trainer steps");
  torch::optim::Optimizer& optimizer = *config.optimizer;
  const auto look = [&] {
    precision_->unscale_gradients(optimizer);
    prepare_step(optimizer);
  };
  if (has_line_search(optimizer) && closure) {
    manual_step_ = precision_->optimizer_step(optimizer, [&] {
      at::Tensor loss = closure();
      look();
      return loss;
    });
  } else {
    if (closure) closure();
    look();
    manual_step_ = precision_->optimizer_step(optimizer);
  }
  note_step(config, manual_step_);
  // Casts of the weights as they were before the step: this is still inside the forward context.
  at::autocast::clear_cache();
  return manual_step_;
}

}  // namespace mantissa
