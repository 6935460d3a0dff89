// One batch: forward, backward, reduce and, where a window ends, unscale, clip and step.
#include <chrono>
#include <utility>

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "mantissa/trainer/loop/agreement_internal.h"
#include "mantissa/trainer/loop/fit_run_internal.h"
#include "mantissa/trainer/loop/scoped_flag_internal.h"

namespace mantissa {

TrainBatch FitRun::train_batch(BatchTransfer& transfer, bool is_last_of_epoch) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const FitProgress& now = progress_.now();
  TrainBatch done;
  done.epoch = now.epoch;
  done.batch_index = now.batches;
  done.stepped = is_automatic_ && (progress_.window_batches() + 1 == window_size_ || is_last_of_epoch);
  logs_.begin_batch(makes_row(done.stepped));
  progress_.begin_batch();
  const Batch batch = take(transfer);
  for_each_callback([&](Callback& c) { c.on_train_batch_start(trainer_, batch, now.batches); });
  metrics_.batch().reset();
  {
    const LoggingInto scope(*this, {&metrics_.batch(), /*makes_step_values=*/true});
    if (!is_automatic_)
      step_manually(batch, done);
    else if (has_line_search(optimizers_.first()))
      step_with_line_search(batch, done);
    else
      step_automatically(batch, done);
  }
  done.origin = tracer_.take_new_origin();
  done.global_step = now.steps;
  if (done.loss.defined()) {
    metrics_.batch().add("train_loss", done.loss, batch_weight_);
    logs_.add_step_value("train_loss", done.loss);
  }
  metrics_.end_batch(!progress_.is_inside_window());
  logs_.end_batch(progress_);
  progress_.end_computing();
  done.step_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  progress_.count_batch();
  step_times_.add(done.step_ms, batch_weight_);
  if (is_automatic_ && done.stepped) optimizers_.advance_step_schedules(done.step, progress_);
  return done;
}

bool FitRun::makes_row(bool ends_window) const {
  const int64_t every = options_.log_every_n_steps;
  if (every == 0) return false;
  return is_automatic_ ? ends_window && (progress_.now().steps + 1) % every == 0
                       : (progress_.now().total_batches + 1) % every == 0;
}

/// Forward, backward, reduce and, where the window ends, unscale, clip and step.
void FitRun::step_automatically(const Batch& batch, TrainBatch& done) {
  torch::nn::Module& module = task_.module();
  const at::AutoGradMode with_gradients(true);
  const bool begins_window = !progress_.is_inside_window();
  if (begins_window) tracer_.begin_window(module, window_size_);
  tracer_.begin_batch(module, batch);
  if (retries_overflows_) keep_batch(batch, done.batch_index);

  done.loss = compute_gradients(batch, done.batch_index, begins_window, done.stepped);
  if (retries_overflows_) window_.back().loss = done.loss;
  tracer_.end_batch(module, done.loss);
  if (!done.stepped) return progress_.extend_window();

  done.step = take_step();
  if (retries_overflows_ && done.step.cause() == SkipCause::kNonFiniteGradients) done.step = retry(done.step);
  end_window(done.step);
}

at::Tensor FitRun::compute_gradients(const Batch& batch, int64_t batch_index, bool begins_window,
                                     bool ends_window) {
  const at::Tensor loss = forward(batch, batch_index);
  if (begins_window) clear_gradients(optimizers_.first());
  check_loss(loss);
  if (!loss.defined()) return loss;
  backward(window_size_ > 1 ? loss / window_size_ : loss, /*is_reduced=*/ends_window);
  if (ends_window) strategy_.post_backward();  // has reduced the gradients when it returns
  after_backward();
  return loss.detach();
}

StepResult FitRun::take_step() {
  torch::optim::Optimizer& optimizer = optimizers_.first();
  if (has_gradients(optimizer)) {
    precision_.unscale_gradients(optimizer);
    tracer_.check_gradients(task_.module(), optimizer);
    before_step(optimizer);
    precision_.clip_gradients(optimizer, options_.gradient_clip_val, clip_algorithm_);
  }
  return precision_.optimizer_step(optimizer);
}

/// LBFGS computes the loss and its gradients several times within a step. Each batch is a window, which
/// FitOptimizers::set_up() checks.
void FitRun::step_with_line_search(const Batch& batch, TrainBatch& done) {
  torch::optim::Optimizer& optimizer = optimizers_.first();
  torch::nn::Module& module = task_.module();
  done.step = precision_.optimizer_step(optimizer, [&] {
    const at::AutoGradMode with_gradients(true);
    tracer_.begin_window(module, window_size_);
    tracer_.begin_batch(module, batch);
    done.loss = forward(batch, done.batch_index);
    clear_gradients(optimizer);
    check_loss(done.loss);
    if (!done.loss.defined()) return done.loss;  // the precision refuses it
    backward(done.loss, /*is_reduced=*/true);
    strategy_.post_backward();
    after_backward();
    done.loss = done.loss.detach();
    tracer_.end_batch(module, done.loss);
    precision_.unscale_gradients(optimizer);
    tracer_.check_gradients(module, optimizer);
    before_step(optimizer);
    precision_.clip_gradients(optimizer, options_.gradient_clip_val, clip_algorithm_);
    return mean_of_processes(strategy_, done.loss);
  });
  end_window(done.step);
}

at::Tensor FitRun::forward(const Batch& batch, int64_t batch_index) {
  if (batch.is_empty()) return {};  // all of its samples were skipped
  has_samples_ = true;
  const Scope forward = precision_.forward_context();
  const ScopedFlag inside(is_inside_training_step_);
  return task_.training_step(batch, batch_index);
}

void FitRun::check_loss(const at::Tensor& loss) const {
  const FitProgress& now = progress_.now();
  TORCH_CHECK_VALUE(
      !loss.defined() || (loss.numel() == 1 && loss.requires_grad() && !loss.is_complex()),
      "training_step() of batch ", now.batches, " of epoch ", now.epoch, " returned ",
      loss.numel() != 1   ? "more than one number"
      : loss.is_complex() ? "a complex loss"
                          : "a loss without a gradient",
      "; return a scalar made from the model's parameters, or an undefined tensor to leave the batch out");
  TORCH_CHECK(loss.defined() || strategy_.world_size() == 1, "training_step() of batch ", now.batches,
              " of epoch ", now.epoch, " returned no loss, and the other ", strategy_.world_size() - 1,
              " processes wait for its gradients; return a loss of 0 times the model's output instead");
}

void FitRun::backward(const at::Tensor& loss, bool is_reduced) {
  precision_.backward(loss, [&](const at::Tensor& scaled) {
    task_.on_before_backward(scaled);
    for_each_callback([&](Callback& c) { c.on_before_backward(trainer_, scaled); });
    if (is_reduced) strategy_.pre_backward(scaled);
  });
}

void FitRun::after_backward() {
  task_.on_after_backward();
  for_each_callback([&](Callback& c) { c.on_after_backward(trainer_); });
}

void FitRun::end_window(const StepResult& step) {
  window_.clear();
  progress_.end_window();
  tracer_.end_window(task_.module(), step);
  note_step(optimizers_.configs().front(), step);
}

void FitRun::clear_gradients(torch::optim::Optimizer& optimizer) {
  task_.on_before_zero_grad(optimizer);
  for_each_callback([&](Callback& c) { c.on_before_zero_grad(trainer_, optimizer); });
  optimizer.zero_grad();
}

void FitRun::before_step(torch::optim::Optimizer& optimizer) {
  task_.on_before_optimizer_step(optimizer);
  for_each_callback([&](Callback& c) { c.on_before_optimizer_step(trainer_, optimizer); });
}

void FitRun::note_step(const OptimizerConfig& config, const StepResult& step) {
  progress_.add_step(step);
  optimizers_.note_step(config, step);
}

void FitRun::step_manually(const Batch& batch, TrainBatch& done) {
  const at::AutoGradMode with_gradients(true);
  manual_step_ = {};
  const FitProgress& now = progress_.now();
  const int64_t steps_before = now.steps;
  done.loss = forward(batch, now.batches);
  TORCH_CHECK_VALUE(!done.loss.defined() || done.loss.numel() == 1, "training_step() of batch ", now.batches,
                    " of epoch ", now.epoch,
                    " returned more than one number; return a scalar for display, or an undefined tensor");
  if (done.loss.defined()) done.loss = done.loss.detach();
  done.stepped = now.steps > steps_before;
  done.step = manual_step_;
}

void FitRun::manual_backward(const at::Tensor& loss) {
  TORCH_CHECK(!is_automatic_ && is_inside_training_step_,
              "manual_backward: call it inside training_step() of a task whose automatic_optimization() is "
              "false; otherwise the Trainer calls backward() on the loss that training_step() returns");
  const Scope backward_context = precision_.backward_context();  // training_step() is in the forward context
  optimizers_.note_manual_backward();
  backward(loss, /*is_reduced=*/true);
  strategy_.post_backward();
  after_backward();
}

StepResult FitRun::manual_step(OptimizerConfig& config, const std::function<at::Tensor()>& closure) {
  TORCH_CHECK(!is_automatic_ && is_inside_training_step_,
              "TaskOptimizer::step: call it inside training_step() of a task whose automatic_optimization() "
              "is false; otherwise the Trainer steps");
  torch::optim::Optimizer& optimizer = *config.optimizer;
  const auto unscale = [&] {
    precision_.unscale_gradients(optimizer);
    before_step(optimizer);
  };
  if (has_line_search(optimizer) && closure) {
    manual_step_ = precision_.optimizer_step(optimizer, [&] {
      const at::Tensor loss = closure();
      unscale();
      return mean_of_processes(strategy_, loss);
    });
  } else {
    if (closure) closure();
    unscale();
    manual_step_ = precision_.optimizer_step(optimizer);
  }
  note_step(config, manual_step_);
  return manual_step_;
}

}  // namespace mantissa
