#include "mantissa/trainer/trainer.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/device.h"
#include "mantissa/core/error_message.h"
#include "mantissa/core/out_of_memory.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/precision/channels_last.h"
#include "mantissa/precision/init.h"
#include "mantissa/precision/registry.h"

namespace mantissa {
namespace {

/// While it lives, cuDNN measures its algorithms and takes the fastest (true), or takes them by rule.
Scope cudnn_benchmark(bool on) {
  const bool before = at::globalContext().benchmarkCuDNN();
  at::globalContext().setBenchmarkCuDNN(on);
  return {nullptr, [before](void*) { at::globalContext().setBenchmarkCuDNN(before); }};
}

}  // namespace

/// A task is this trainer's for one run.
class Trainer::Running {
 public:
  Running(Trainer& trainer, Task& task) : trainer_(trainer) {
    TORCH_CHECK(!trainer.task_, "Trainer: a run is going on; use another Trainer inside it");
    TORCH_CHECK(!task.trainer_, "Trainer: the task is in another Trainer's run; give each its own");
    trainer.task_ = &task;
    task.trainer_ = &trainer;
    trainer.is_sanity_checking_ = false;
    const std::lock_guard lock(trainer.stop_mutex_);
    trainer.stopped_by_.clear();
  }
  ~Running() {
    trainer_.task_->trainer_ = nullptr;
    trainer_.task_ = nullptr;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Trainer& trainer_;
};

Trainer::Trainer(TrainerOptions options)
    : options_((check(options), std::move(options))),
      device_(resolve_device(options_.device)),
      precision_(options_.precision_plugin),
      clip_algorithm_(parse_clip_algorithm(options_.gradient_clip_algorithm)) {
  TORCH_CHECK_VALUE(!precision_ || precision_->device_type().value_or(device_.type()) == device_.type(),
                    "Trainer: the precision_plugin was made for another kind of device than ", device_.str(),
                    "; make it for this one, or set device");
  if (!precision_) {
    const std::string mode =
        mode_of_amp_flags(options_.precision.value_or(""), options_.amp_backend, options_.amp_level);
    precision_ = make_precision(mode.empty() ? "32-true" : mode, device_, options_.precision_options);
  }
  std::stable_partition(options_.callbacks.begin(), options_.callbacks.end(),
                        [](const auto& callback) { return !callback->runs_last(); });
  if (const int64_t batches = options_.fast_dev_run; batches > 0) {
    options_.loggers.clear();
    options_.max_epochs = 1;
    options_.max_steps = batches;
    options_.min_epochs = options_.min_steps = options_.num_sanity_val_steps = 0;
    options_.accumulate_grad_batches = 1;
    options_.overfit_batches = 0.0;
    options_.val_check_interval = 1.0;
    options_.check_val_every_n_epoch = 1;
    options_.limit_train_batches = options_.limit_val_batches = options_.limit_test_batches =
        options_.limit_predict_batches = batches;
  }
}

Trainer::~Trainer() = default;

void Trainer::stop(std::string why) {
  const std::lock_guard lock(stop_mutex_);
  if (stopped_by_.empty()) stopped_by_ = why.empty() ? "stop()" : std::move(why);
}

std::string Trainer::stopped_by() const {
  const std::lock_guard lock(stop_mutex_);
  return stopped_by_;
}

std::optional<double> Trainer::metric_now(const std::string& name) const {
  const auto found = callback_metrics_.find(name);
  if (found == callback_metrics_.end()) return std::nullopt;
  const bool is_new = validation_metrics_.contains(name)
                          ? progress_.validated_batches == progress_.total_batches
                          : epoch_metrics_.contains(name) && measured_batches_ == progress_.total_batches;
  return is_new ? std::optional(found->second) : std::nullopt;
}

torch::optim::Optimizer* Trainer::optimizer() const {
  return optimizers_.empty() ? nullptr : optimizers_.front().optimizer.get();
}

void Trainer::run(Stage stage, Task& task, const std::function<void()>& body) {
  const Running running(*this, task);
  const c10::DeviceGuard device_is_current(device_);
  stage_ = stage;
  {
    const std::lock_guard lock(loggers_mutex_);
    loggers_ = options_.loggers;
  }
  row_ = {};
  batch_weight_ = 0;
  in_batch_ = in_step_ = broke_in_step_ = false;
  if (stage == Stage::kFit) {  // of the last one: its task may be gone
    optimizers_.clear();
    task_optimizers_.clear();
    module_ = nullptr;
    train_loader_ = nullptr;
    resume_rng_.reset();
  }
  try {
    pin_cpu_kernels(options_.cpu_kernels);
    const Scope run_context = precision_->run_context();
    const Scope benchmark = options_.benchmark ? cudnn_benchmark(*options_.benchmark) : nullptr;
    reset_peak_memory(device_);
    tell([&](Callback& c) { c.setup(*this, stage); });
    try {
      body();
    } catch (c10::Error& error) {
      explain_if_out_of_memory(error);
      throw;
    }
    precision_->teardown();
    tell([&](Callback& c) { c.teardown(*this, stage); });
    end_logs(interrupted_by_ == 0 ? "success" : "interrupted");
  } catch (...) {
    const std::exception_ptr exception = std::current_exception();
    broke_in_step_ = in_step_;
    // An error that follows must neither hide the cause nor keep the others from closing their files.
    const auto try_to = [](const char* who, const auto& act) {
      try {
        act();
      } catch (...) {
        TORCH_WARN(who, " failed while the run ended on an error: ", message_of(std::current_exception()));
      }
    };
    const auto last_words = [&](const auto& hook) {
      for (const auto& callback : options_.callbacks) try_to("a callback", [&] { hook(*callback); });
    };
    last_words([&](Callback& c) { c.on_exception(*this, exception); });
    last_words([&](Callback& c) { c.teardown(*this, stage); });
    try_to("the precision", [&] { precision_->teardown(); });
    end_logs("failed");
    window_.clear();
    before_window_.reset();
    throw;
  }
}

void Trainer::explain_if_out_of_memory(c10::Error& error) const {
  if (!is_out_of_memory(error)) return;
  const std::string batch = batch_weight_ > 0
                                ? "at batch size " + std::to_string(static_cast<int64_t>(batch_weight_))
                                : "before its first batch";
  error.add_context(c10::str("the run in ", precision_->name(), " on ", device_.str(), " was ", batch, "; ",
                             describe_memory(device_)));
  std::string cures = "take smaller batches, with which accumulate_grad_batches gives a step as many samples";
  if (!is_16_bit(precision_->traits().compute)) cures += ", or precision bf16-mixed or 16-true";
  cures += "; plan_memory() counts beforehand what a mode needs";
  if (const std::string cure = fragmentation_cure(device_); !cure.empty()) cures += "; " + cure;
  error.add_context(std::move(cures));
}

void Trainer::set_up_model(Task& task) {
  {
    const ModuleInit scope(*precision_);
    task.configure_model();
  }
  precision_->convert_module(task.module());
  move_module(task.module(), device_);
  if (options_.channels_last) set_channels_last(task.module());
  module_ = &task.module();
}

BatchTransfer Trainer::batch_transfer() const {
  return {device_, [this](const Batch& batch) { return precision_->convert_inputs(batch); }};
}

Batch Trainer::take(BatchTransfer& transfer) {
  Batch batch = transfer.take();
  // Here, and not on the way: a GPU reorders in a fraction of the host's time.
  if (options_.channels_last) batch = map_tensors(batch, channels_last);
  batch_weight_ = static_cast<double>(batch.size());
  return batch;
}

}  // namespace mantissa
