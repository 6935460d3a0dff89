#include "mantissa/trainer/memory_plan.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/private_member_internal.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/trainer/loop/same_random_numbers_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

using CpuReporter = c10::ProfiledCPUMemoryReporter;
struct WarnedCount {
  using type = size_t CpuReporter::*;
  friend type pointer_to(WarnedCount);
};
template struct PrivateMember<WarnedCount, &CpuReporter::log_cnt_>;
struct ReporterMutex {
  using type = std::mutex CpuReporter::*;
  friend type pointer_to(ReporterMutex);
};
template struct PrivateMember<ReporterMutex, &CpuReporter::mutex_>;

namespace {

/// While one lives, libtorch's CPU allocator does not warn of freed blocks that are older than the counting;
/// every program has some. The allocator logs the first of every thousand such blocks, by its own counter.
/// This class keeps the counter away from that value and restores it at the end, so that a profiler's
/// warnings come as they would have.
class SilencedOlderBlocks {
 public:
  SilencedOlderBlocks() : before_(with_count([](size_t& count) { return count; })) {}
  ~SilencedOlderBlocks() {
    with_count([this](size_t& count) { return count = before_; });
  }
  SilencedOlderBlocks(const SilencedOlderBlocks&) = delete;
  SilencedOlderBlocks& operator=(const SilencedOlderBlocks&) = delete;

  /// Must be called before each block is freed.
  static void keep() {
    with_count([](size_t& count) { return count = 1; });
  }

 private:
  template <typename Use>
  static size_t with_count(const Use& use) {
    CpuReporter& reporter = c10::profiledCPUMemoryReporter();
    const std::lock_guard lock(reporter.*pointer_to(ReporterMutex()));
    return use(reporter.*pointer_to(WarnedCount()));
  }
  size_t before_;
};

/// Counts what libtorch's allocators hand out and take back, on one kind of device. They report to the object
/// in the profiler's place. libtorch casts that object to ProfilerStateBase elsewhere, so this class derives
/// from it, without any profiler.
class LiveBytes final : public torch::profiler::impl::ProfilerStateBase {
 public:
  explicit LiveBytes(at::DeviceType type)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(
            torch::profiler::impl::ProfilerState::Disabled, /*report_input_shapes=*/false,
            /*profile_memory=*/true)),
        type_(type) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device device) override {
    if (device.type() != type_) return;
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      blocks_[block] = bytes;
      now_ += bytes;
      peak_ = std::max(peak_, now_);
    } else if (const auto found = blocks_.find(block); found != blocks_.end()) {
      // A block that is not found is older than the counting.
      now_ -= found->second;
      blocks_.erase(found);
    }
  }
  /// Allocators ask this before every block that they hand out or take back.
  bool memoryProfilingEnabled() const override {
    SilencedOlderBlocks::keep();
    return true;
  }
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }

  int64_t now() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  int64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  void restart_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = now_;
  }
  /// Whether the block at this address was handed out since the counting began.
  bool contains(const void* block) const {
    const std::lock_guard lock(mutex_);
    return blocks_.contains(block);
  }

 private:
  SilencedOlderBlocks silenced_;
  at::DeviceType type_;
  mutable std::mutex mutex_;  // a GPU's backward pass runs in a thread of its own
  std::unordered_map<const void*, int64_t> blocks_;
  int64_t now_ = 0, peak_ = 0;
};

/// Bytes of tensors; each storage counts once.
class TensorBytes {
 public:
  /// `since`: if given, only blocks that it has counted.
  explicit TensorBytes(const LiveBytes* since = nullptr) : since_(since) {}

  int64_t add(const at::Tensor& tensor) {
    if (!tensor.defined()) return 0;
    if (tensor.is_sparse()) return add(tensor._indices()) + add(tensor._values());
    if (!tensor.has_storage()) return since_ ? 0 : static_cast<int64_t>(tensor.nbytes());
    const at::Storage& storage = tensor.storage();
    // Without storage.data(): a packed weight's storage refuses it. Packed weights are older than the count.
    if (since_ && !since_->contains(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()))
      return 0;
    return seen_.insert(storage.unsafeGetStorageImpl()).second ? static_cast<int64_t>(storage.nbytes()) : 0;
  }
  int64_t add(const std::vector<at::Tensor>& tensors) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += add(tensor);
    return bytes;
  }
  int64_t add(const StateValue& state) {
    int64_t bytes = 0;
    if (const auto* tensor = state.get_if<at::Tensor>()) bytes += add(*tensor);
    if (const auto* list = state.get_if<StateList>())
      for (const StateValue& entry : *list) bytes += add(entry);
    if (const auto* dict = state.get_if<StateDict>())
      for (const auto& [name, entry] : *dict) bytes += add(entry);
    return bytes;
  }

 private:
  const LiveBytes* since_;
  std::unordered_set<const void*> seen_;
};

/// Returns what a run holds now, without activations and peak.
/// `since`: if given, only what was allocated since its counting began.
MemoryPlan held_by(const Trainer& trainer, const LiveBytes* since = nullptr) {
  TensorBytes counted(since);
  MemoryPlan held;
  held.weights = counted.add(trainer.module()->parameters());
  held.buffers = counted.add(trainer.module()->buffers());
  std::vector<at::Tensor> parameters = trainer.module()->parameters();
  for (const OptimizerConfig& config : trainer.optimizers()) {
    for (const at::Tensor& stepped : main_params(*config.optimizer)) {
      held.masters += counted.add(stepped);
      parameters.push_back(stepped);
    }
  }
  held.mode_states = counted.add(trainer.precision().state_dict());
  for (const at::Tensor& parameter : parameters) held.gradients += counted.add(parameter.grad());
  for (const OptimizerConfig& config : trainer.optimizers())
    held.optimizer_states += counted.add(optimizer_state(*config.optimizer));
  return held;
}

/// cuBLAS keeps a workspace for each thread that uses it, including the thread of the backward pass.
/// libtorch's allocator provides it at the first product: tens of MiB that belong to no tensor of the model.
void make_workspaces(at::Device device) {
  if (!device.is_cuda()) return;
  const c10::AutoGradMode with_gradients(true);
  const at::Tensor x = at::ones({8, 8}, at::TensorOptions(device).dtype(at::kFloat)).requires_grad_();
  at::matmul(x, x).sum().backward();
}

/// Fills a plan while a Trainer trains two batches.
class MemoryCounter final : public Callback {
 public:
  MemoryPlan plan;
  bool has_stepped = false;

  /// Runs before any batch is on its way to a GPU.
  void on_train_start(Trainer& trainer) override {
    plan.precision = trainer.precision().name();
    make_workspaces(trainer.device());
    live_ = std::make_shared<LiveBytes>(trainer.device().type());
    guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, live_);
  }

  void on_train_batch_start(Trainer& /*trainer*/, const Batch& /*batch*/, int64_t index) override {
    if (index > 0) {
      live_->restart_peak();
    } else {
      batches_ = live_->now();
    }
  }

  void on_before_backward(Trainer& trainer, const at::Tensor& /*loss*/) override {
    if (has_stepped) return;
    // A task that steps by itself may hold gradients and states of an earlier step in this batch, and a mode may
    // have made its state in the forward pass.
    const int64_t held = held_by(trainer, live_.get()).total();
    plan.activations = std::max(plan.activations, live_->now() - held - batches_);
  }

  void on_after_backward(Trainer& trainer) override {
    // A step that a scaler skips would create no state.
    const at::NoGradGuard no_grad;
    for (const OptimizerConfig& config : trainer.optimizers())
      for (at::Tensor& parameter : main_params(*config.optimizer))
        if (parameter.grad().defined()) parameter.mutable_grad().zero_();
  }

  void on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer& /*optimizer*/) override {
    plan.gradients = std::max(plan.gradients, held_by(trainer).gradients);
  }

  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
    has_stepped = has_stepped || (batch.stepped && !batch.step.skipped());
    const MemoryPlan held = held_by(trainer);
    plan.weights = held.weights;
    plan.buffers = held.buffers;
    plan.masters = held.masters;
    plan.mode_states = held.mode_states;
    plan.optimizer_states = held.optimizer_states;
    const int64_t older = held.total() - held_by(trainer, live_.get()).total();
    plan.peak = older + live_->peak();
    if (batch.batch_index > 0) trainer.stop("the count is complete");
  }

 private:
  std::shared_ptr<LiveBytes> live_;
  std::optional<c10::DebugInfoGuard> guard_;
  int64_t batches_ = 0;  ///< copies of batches at the start of the first forward pass
};

/// An epoch of one batch, given three times. The second finds the optimizer's state and the gradients of the
/// first. While it trains, the third is on its way to a GPU.
class RepeatedBatch final : public Loader {
 public:
  explicit RepeatedBatch(const Batch& batch) : batch_(batch) {}
  void set_epoch(int64_t /*epoch*/) override { given_ = 0; }
  std::optional<Batch> next() override { return given_++ < size() ? std::optional(batch_) : std::nullopt; }
  int64_t size() const override { return 3; }

 private:
  const Batch& batch_;
  int64_t given_ = 0;
};

}  // namespace

MemoryPlan plan_memory(Task& task, const Batch& batch, const TrainerOptions& options) {
  TORCH_CHECK(!c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE),
              "plan_memory: a profiler is active in this thread, and the count needs its place; stop the "
              "profiler first");
  const SameRandomNumbers untouched;
  TrainerOptions dry;
  dry.precision = options.precision;
  dry.precision_options = options.precision_options;
  dry.amp_backend = options.amp_backend;
  dry.amp_level = options.amp_level;
  dry.precision_plugin = options.precision_plugin;
  dry.cpu_kernels = options.cpu_kernels;
  dry.device = options.device;
  dry.channels_last = options.channels_last;
  dry.benchmark = options.benchmark;
  if (task.automatic_optimization()) {
    dry.gradient_clip_val = options.gradient_clip_val;
    dry.gradient_clip_algorithm = options.gradient_clip_algorithm;
  }
  const auto counting = std::make_shared<MemoryCounter>();
  dry.callbacks = {counting};
  RepeatedBatch loader(batch);
  const FitResult result = Trainer(dry).fit(task, loader);
  TORCH_CHECK(result.interrupted_by == 0, "plan_memory: signal ", result.interrupted_by,
              " interrupted the count");
  TORCH_CHECK_VALUE(counting->has_stepped,
                    "plan_memory: the task took no optimizer step on this batch, so the memory of a step is "
                    "unknown; give a batch for which training_step() returns a loss");
  return counting->plan;
}

}  // namespace mantissa
