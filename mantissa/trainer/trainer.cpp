#include "mantissa/trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "mantissa/amp/matmul_precision.h"
#include "mantissa/core/device.h"
#include "mantissa/precision/init.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/interrupt.h"
#include "mantissa/trainer/logging_into_internal.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

GradientClipAlgorithm parse_clip_algorithm(std::string name) {
  const std::string given = name;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  TORCH_CHECK_VALUE(name == "norm" || name == "value", "gradient_clip_algorithm '", given,
                    "' is not one; choose norm or value");
  return name == "norm" ? GradientClipAlgorithm::kNorm : GradientClipAlgorithm::kValue;
}

Scope matmul_precision_scope(const TrainerOptions& options) {
  const auto& name = options.float32_matmul_precision;
  return name ? std::make_shared<Float32MatmulPrecisionGuard>(*name) : nullptr;
}

void check(const TrainerOptions& options) {
  TORCH_CHECK_VALUE(!options.precision || !options.precision_plugin, "Trainer: both precision='",
                    options.precision.value_or(""), "' and a precision_plugin were given; choose one");
  const bool is_told = options.precision_options != PrecisionOptions{} || options.amp_backend != "native" ||
                       !options.amp_level.empty();
  TORCH_CHECK_VALUE(
      !is_told || !options.precision_plugin,
      "Trainer: a precision_plugin was given, and with it precision_options, amp_backend or amp_level, "
      "which are for the modes by name; make the plugin with them, or leave it out");
  TORCH_CHECK_VALUE(options.max_epochs >= -1 && options.max_steps >= -1,
                    "Trainer: max_epochs and max_steps are counts, or -1 for no limit; got max_epochs=",
                    options.max_epochs, ", max_steps=", options.max_steps);
  TORCH_CHECK_VALUE(
      options.max_epochs != -1 || options.max_steps != -1,
      "Trainer: max_epochs and max_steps are both -1, so training would never end; set one of them");
  TORCH_CHECK_VALUE(options.accumulate_grad_batches >= 1,
                    "Trainer: accumulate_grad_batches must be at least 1, got ",
                    options.accumulate_grad_batches);
  TORCH_CHECK_VALUE(options.gradient_clip_val >= 0,
                    "Trainer: gradient_clip_val must be at least 0 (0: no clipping), got ",
                    options.gradient_clip_val);
  TORCH_CHECK_VALUE(options.check_val_every_n_epoch >= 1,
                    "Trainer: check_val_every_n_epoch must be at least 1, got ",
                    options.check_val_every_n_epoch);
  matmul_precision_scope(options);  // refuses what is no name
}

/// Puts a module into evaluation mode and each of its parts back into the mode it had: a layer that the user
/// has frozen stays so.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : root_(module) {
    for (const auto& part : module.modules(/*include_self=*/false))
      parts_.emplace_back(part, part->is_training());
    was_training_ = module.is_training();
    module.eval();
  }
  ~EvaluationMode() {
    root_.train(was_training_);
    // Parents come before their children, and train() reaches down: so the children's own word is the last.
    for (const auto& [part, was_training] : parts_) part->train(was_training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& root_;
  bool was_training_ = true;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> parts_;
};

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

Trainer::Trainer(TrainerOptions options)
    : options_((check(options), std::move(options))),
      device_(resolve_device(options_.device)),
      precision_(options_.precision_plugin),
      clip_algorithm_(parse_clip_algorithm(options_.gradient_clip_algorithm)) {
  TORCH_CHECK_VALUE(!precision_ || precision_->device_type().value_or(device_.type()) == device_.type(),
                    "Trainer: the precision_plugin was made for another kind of device than ", device_.str(),
                    "; make it for this one, or set device");
  if (precision_) return;
  const std::string mode =
      mode_of_amp_flags(options_.precision.value_or(""), options_.amp_backend, options_.amp_level);
  precision_ = make_precision(mode.empty() ? "32-true" : mode, device_, options_.precision_options);
}

void Trainer::set_up_model(Task& task) {
  {
    const ModuleInit scope(*precision_);
    task.configure_model();
  }
  precision_->convert_module(task.module());
  move_module(task.module(), device_);
  module_ = &task.module();
}

Batch Trainer::to_device(const Batch& batch) const { return device_.is_cpu() ? batch : batch.to(device_); }

at::Tensor Trainer::forward_and_backward(Task& task, const Batch& batch, bool ends_window) {
  torch::optim::Optimizer& optimizer = *optimizers_.optimizer;
  const bool begins_window = window_batches_ == 0;
  const at::AutoGradMode with_gradients(true);
  const bool is_noted = note_for_replay(task, batch, begins_window);
  at::Tensor loss;
  {
    const Scope forward = precision_->forward_context();
    loss = task.training_step(batch, batch_index_);
  }
  if (begins_window) {
    task.on_before_zero_grad(optimizer);
    optimizer.zero_grad();
  }
  if (loss.defined()) {
    TORCH_CHECK_VALUE(
        loss.numel() == 1 && loss.requires_grad(), "training_step() of batch ", batch_index_, " of epoch ",
        epoch_, " returned ", loss.numel() == 1 ? "a loss without a gradient" : "more than one number",
        "; return a scalar made from the model's parameters, or an undefined tensor to leave the batch out");
    const int64_t count = options_.accumulate_grad_batches;
    const at::Tensor share = count > 1 ? loss / count : loss;
    const at::Tensor scaled = precision_->pre_backward(share);
    is_scaled_ = !scaled.is_same(share);
    task.on_before_backward(scaled);
    scaled.backward();
    task.on_after_backward();
    // Not before: a second forward would change batch norm's statistics under the first one's backward.
    if (is_noted && !std::isfinite(loss.item<double>())) trace_window(task);
  }
  if (is_noted && !loss.defined()) window_.pop_back();  // left out: it cannot be the one
  if (ends_window && (loss.defined() || has_gradients(optimizer))) {
    precision_->unscale_gradients(optimizer);
    // A scaler drops the step, and the trace can wait until then; without one the step breaks the weights.
    if (is_noted && !is_scaled_ && !origin_ && !gradients_are_finite(optimizer)) trace_window(task);
    task.on_before_optimizer_step(optimizer);
    precision_->clip_gradients(optimizer, options_.gradient_clip_val, clip_algorithm_);
  }
  return loss.defined() ? loss.detach() : loss;
}

TrainBatch Trainer::train_batch(Task& task, const Batch& raw, bool ends_window) {
  const auto start = Clock::now();
  TrainBatch done;
  done.epoch = epoch_;
  done.batch_index = batch_index_;
  done.stepped = ends_window;
  const Batch batch = to_device(precision_->convert_inputs(raw));
  if (window_batches_ == 0) origin_.reset();
  const auto closure = [&] { return done.loss = forward_and_backward(task, batch, ends_window); };
  if (ends_window) {
    done.step = precision_->optimizer_step(*optimizers_.optimizer, closure);
    window_batches_ = 0;
    if (done.step.cause == SkipCause::kNonFiniteGradients && options_.trace_nonfinite) trace_window(task);
    if (!done.step.skipped) {
      ++steps_taken_;
      overflows_in_a_row_ = 0;
    }
    if (done.step.skipped && before_window_) before_window_->restore_buffers();
    if (optimizers_.scheduler && optimizers_.interval == OptimizerConfig::Interval::kStep &&
        !done.step.skipped)
      optimizers_.scheduler->step();
  } else {
    closure();
    ++window_batches_;
  }
  if (std::exchange(origin_is_new_, false)) done.origin = origin_;
  done.step_ms = milliseconds_since(start);
  return done;
}

FitResult Trainer::fit(Task& task, Loader& train, Loader* val) {
  const auto start = Clock::now();
  const InterruptScope interrupt;
  const auto tell = [&](const auto& what) {
    for (const auto& callback : options_.callbacks) what(*callback);
  };
  FitResult result;
  std::vector<double> step_ms;
  double train_ms = 0, samples = 0;
  try {
    const Scope matmul_precision = matmul_precision_scope(options_);
    TORCH_CHECK_VALUE(train.size() > 0,
                      "fit: the training loader has no batches; give a dataset with at least one sample");
    TORCH_CHECK_VALUE(!val || val->size() > 0,
                      "fit: the validation loader has no batches; give it data or leave it out");
    reset_peak_memory(device_);
    set_up_model(task);
    optimizers_ = task.configure_optimizers();
    TORCH_CHECK_VALUE(optimizers_.optimizer, "fit: configure_optimizers() returned no optimizer");
    TORCH_CHECK_TYPE(
        options_.accumulate_grad_batches == 1 ||
            !dynamic_cast<torch::optim::LBFGS*>(optimizers_.optimizer.get()),
        "fit: LBFGS evaluates the last batch of a window several times, which accumulate_grad_batches=",
        options_.accumulate_grad_batches, " cannot follow; set it to 1, or take another optimizer");
    precision_->setup_optimizer(*optimizers_.optimizer);
    traces_left_ = TrainerOptions::kMaxTraces;
    steps_taken_ = overflows_in_a_row_ = 0;
    told_of_scale_ = false;
    told_of_.clear();
    tell([&](Callback& c) {
      c.on_fit_start(*this, {train.size(), options_.max_epochs, options_.max_steps});
    });

    const auto wants_end = [&] {
      result.interrupted_by = InterruptScope::requested();
      return result.interrupted_by != 0 || (options_.max_steps >= 0 && result.steps >= options_.max_steps);
    };
    for (epoch_ = 0; (options_.max_epochs < 0 || epoch_ < options_.max_epochs) && !wants_end(); ++epoch_) {
      train.set_epoch(epoch_);
      tell([&](Callback& c) { c.on_train_epoch_start(epoch_); });
      MeanMetrics epoch_metrics;
      batch_index_ = window_batches_ = 0;
      bool interrupted = false, learned = false, gave_batches = false;
      // One batch ahead, so that the last batch of the epoch is known to be it.
      for (std::optional<Batch> batch = train.next(), next; batch; batch = std::move(next), ++batch_index_) {
        next = train.next();
        gave_batches = true;
        const bool ends_window = window_batches_ + 1 == options_.accumulate_grad_batches || !next;
        TrainBatch done;
        {
          task.batch_weight_ = static_cast<double>(batch->size());
          const LoggingInto scope(task.metrics_, epoch_metrics);
          done = train_batch(task, *batch, ends_window);
          if (done.loss.defined()) task.log("train_loss", done.loss);
        }
        result.steps += done.stepped;
        result.skipped_steps += done.step.skipped;
        learned |= done.stepped && !done.step.skipped;
        done.global_step = result.steps;
        samples += task.batch_weight_;
        train_ms += done.step_ms;
        step_ms.push_back(done.step_ms);
        tell([&](Callback& c) { c.on_train_batch_end(*this, done); });
        if (done.stepped && wants_end()) {
          interrupted = next.has_value();
          break;
        }
      }
      if (optimizers_.scheduler && optimizers_.interval == OptimizerConfig::Interval::kEpoch && learned &&
          !interrupted)
        optimizers_.scheduler->step();
      result.metrics = epoch_metrics.compute();
      result.epochs += !interrupted;
      const bool last = wants_end() || epoch_ + 1 == options_.max_epochs;
      TORCH_CHECK_VALUE(gave_batches, "fit: the training loader gave no batch in epoch ", epoch_,
                        "; a loader must begin again at set_epoch()");
      if (val && !result.interrupted_by && (last || (epoch_ + 1) % options_.check_val_every_n_epoch == 0)) {
        for (const auto& [name, value] : run_validation(task, *val)) result.metrics[name] = value;
        wants_end();  // a signal meanwhile: the loop's own condition may not ask any more
      }
      tell([&](Callback& c) { c.on_epoch_end(epoch_, result.steps, result.metrics); });
    }
    window_.clear();
    before_window_.reset();
    result.seconds = milliseconds_since(start) / 1e3;
    result.step_ms = median(std::move(step_ms));
    result.samples_per_second = train_ms > 0 ? samples / train_ms * 1e3 : 0;
    result.peak_memory_bytes = peak_memory_bytes(device_);
    tell([&](Callback& c) { c.on_fit_end(*this, result); });
  } catch (...) {
    tell([](Callback& c) { c.on_exception(); });
    throw;
  }
  return result;
}

Metrics Trainer::validate(Task& task, Loader& val) {
  TORCH_CHECK_VALUE(val.size() > 0,
                    "validate: the loader has no batches; give a dataset with at least one sample");
  const Scope matmul_precision = matmul_precision_scope(options_);
  set_up_model(task);
  return run_validation(task, val);
}

Metrics Trainer::run_validation(Task& task, Loader& val) {
  MeanMetrics metrics;
  const EvaluationMode evaluation(task.module());
  for (const auto& callback : options_.callbacks) callback->on_validation_start(*this);
  val.set_epoch(0);
  int64_t index = 0;
  // Fetched outside inference mode: a dataset that keeps a tensor could not train on it later.
  while (const std::optional<Batch> raw = val.next()) {
    if (InterruptScope::requested()) {
      metrics = {};  // means over some of the batches would pass for all
      break;
    }
    const c10::InferenceMode inference(options_.inference_mode);
    const at::NoGradGuard no_gradients;
    const Batch batch = to_device(precision_->convert_inputs(*raw));
    task.batch_weight_ = static_cast<double>(batch.size());
    const LoggingInto scope(task.metrics_, metrics);
    const Scope forward = precision_->forward_context();
    task.validation_step(batch, index++);
  }
  for (const auto& callback : options_.callbacks) callback->on_validation_end(*this);
  return metrics.compute();
}

}  // namespace mantissa
