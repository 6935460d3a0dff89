#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/module.h>

#include "mantissa/core/device.h"
#include "mantissa/core/error_message.h"
#include "mantissa/core/out_of_memory.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/precision/channels_last.h"
#include "mantissa/precision/init.h"
#include "mantissa/trainer/loop/trainer_run_internal.h"

namespace mantissa {
namespace {

/// Sets cuDNN's benchmark mode for a scope: true measures algorithms and takes the fastest, false uses
/// heuristics.
Scope cudnn_benchmark(bool on) {
  const bool before = at::globalContext().benchmarkCuDNN();
  at::globalContext().setBenchmarkCuDNN(on);
  return {nullptr, [before](void*) { at::globalContext().setBenchmarkCuDNN(before); }};
}

/// Runs `act` while a run ends. What `act` throws becomes `error`. If there is one already, it becomes a
/// warning, so that it does not hide the error.
template <typename Act>
void try_to(const char* who, std::exception_ptr& error, const Act& act) {
  try {
    act();
  } catch (...) {
    if (error) {
      TORCH_WARN(who, " failed while the run ended on an error: ", message_of(std::current_exception()));
    } else {
      error = std::current_exception();
    }
  }
}

}  // namespace

/// A task belongs to one run at a time.
class TrainerRun::Active {
 public:
  explicit Active(TrainerRun& run) : run_(run) {
    run.task_.run_ = &run;
    run.is_active_ = true;
  }
  ~Active() {
    run_.is_active_ = false;
    run_.task_.run_ = nullptr;
  }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  TrainerRun& run_;
};

TrainerRun::TrainerRun(Trainer& trainer, Stage stage, Task& task, const Progress& earlier)
    : trainer_(trainer),
      options_(trainer.options()),
      precision_(trainer.precision()),
      strategy_(options_.strategy ? *options_.strategy : one_process_),
      stage_(stage),
      task_(task),
      progress_(earlier),
      logs_(strategy_.is_global_zero() ? options_.loggers : std::vector<std::shared_ptr<Logger>>()) {}

void TrainerRun::check_task_is_free() const {
  TORCH_CHECK(!task_.run_, "Trainer: the task is in another Trainer's run; give each its own");
}

void TrainerRun::run(const std::function<void()>& body) {
  const Active active(*this);
  const c10::DeviceGuard device_is_current(trainer_.device());
  std::exception_ptr error;
  try {
    pin_cpu_kernels(options_.cpu_kernels);
    const Scope run_context = precision_.run_context();
    const Scope benchmark = options_.benchmark ? cudnn_benchmark(*options_.benchmark) : nullptr;
    reset_peak_memory(trainer_.device());
    for_each_callback([&](Callback& c) { c.setup(trainer_, stage_); });
    try {
      body();
    } catch (c10::Error& error) {
      explain_if_out_of_memory(error);
      throw;
    }
  } catch (...) {
    error = std::current_exception();
    progress_.fail();
    logs_.abandon_batch();
    for_each_callback(
        [&](Callback& c) { try_to("a callback", error, [&] { c.on_exception(trainer_, error); }); });
  }
  // Both ends of a run come through here, so that each part ends once, whatever another part throws.
  for_each_callback([&](Callback& c) { try_to("a callback", error, [&] { c.teardown(trainer_, stage_); }); });
  try_to("the precision", error, [&] { precision_.teardown(); });
  try_to("the strategy", error, [&] { strategy_.teardown(); });
  release();
  end_logs(error ? "failed" : interrupted_by() == 0 ? "success" : "interrupted");
  if (error) std::rethrow_exception(error);
}

void TrainerRun::end_logs(const std::string& status) {
  if (stage_ == Stage::kFit) return logs_.finalize(status);
  logs_.end_row();
  logs_.save_to_disk();
}

void TrainerRun::explain_if_out_of_memory(c10::Error& error) const {
  if (!is_out_of_memory(error)) return;
  const at::Device device = trainer_.device();
  const std::string batch = batch_weight_ > 0
                                ? "at batch size " + std::to_string(static_cast<int64_t>(batch_weight_))
                                : "before its first batch";
  error.add_context(c10::str("the run in ", precision_.name(), " on ", device.str(), " was ", batch, "; ",
                             describe_memory(device)));
  std::string cures = "use smaller batches, and raise accumulate_grad_batches to keep the samples per step";
  if (!is_16_bit(precision_.traits().compute)) cures += ", or use a mode that computes in 16 bits";
  cures += "; plan_memory() predicts the memory of a mode";
  if (const std::string cure = fragmentation_cure(device); !cure.empty()) cures += "; " + cure;
  error.add_context(std::move(cures));
}

void TrainerRun::set_up_model() {
  {
    const ModuleInit scope(precision_);
    task_.configure_model();
  }
  precision_.convert_module(task_.module());
  move_module(task_.module(), trainer_.device());
  if (options_.channels_last) set_channels_last(task_.module());
  module_ = &task_.module();
}

BatchTransfer TrainerRun::batch_transfer() const {
  return {trainer_.device(), [this](const Batch& batch) { return precision_.convert_inputs(batch); }};
}

Batch TrainerRun::take(BatchTransfer& transfer) {
  Batch batch = transfer.take();
  // Reorders on the device: a GPU takes a fraction of the host's time.
  if (options_.channels_last) batch = map_tensors(batch, channels_last);
  batch_weight_ = static_cast<double>(batch.size());
  return batch;
}

}  // namespace mantissa
