// Epochs: chooses the next batch, and does what is due between two batches.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/nn/module.h>

#include "mantissa/core/device.h"
#include "mantissa/trainer/loop/agreement_internal.h"
#include "mantissa/trainer/loop/fit_run_internal.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/loop/same_random_numbers_internal.h"
#include "mantissa/trainer/loop/scoped_flag_internal.h"

namespace mantissa {
namespace {

/// Repeats the first batches of a loader's epoch 0.
class FirstBatches final : public Loader {
 public:
  FirstBatches(Loader& loader, int64_t count) {
    loader.set_epoch(0);
    while (size() < count) {
      std::optional<Batch> batch = loader.next();
      if (!batch) break;
      batches_.push_back(*std::move(batch));
    }
  }
  void set_epoch(int64_t /*epoch*/) override { next_ = 0; }
  std::optional<Batch> next() override {
    return next_ < batches_.size() ? std::optional(batches_[next_++]) : std::nullopt;
  }
  int64_t size() const override { return static_cast<int64_t>(batches_.size()); }

 private:
  std::vector<Batch> batches_;
  size_t next_ = 0;
};

void check_loaders(const Loader& train, const Loader* val) {
  TORCH_CHECK_VALUE(train.size() > 0,
                    "fit: the training loader has no batches; give a dataset with at least one sample");
  TORCH_CHECK_VALUE(!val || val->size() > 0,
                    "fit: the validation loader has no batches; give it data or leave it out");
}

/// Checks that the options fit a task that steps by itself.
void check_task(const Task& task, const TrainerOptions& options) {
  if (task.automatic_optimization()) return;
  TORCH_CHECK_VALUE(options.gradient_clip_val == 0, "fit: gradient_clip_val=", options.gradient_clip_val,
                    " is for automatic optimization, and this task steps by itself: leave it out, and call "
                    "TaskOptimizer::clip_gradients() before step()");
  TORCH_CHECK_VALUE(options.accumulate_grad_batches.is_always(1),
                    "fit: accumulate_grad_batches=", options.accumulate_grad_batches.to_string(),
                    " is for automatic optimization, and this task steps by itself: leave it out, and step "
                    "every N batches");
  TORCH_CHECK_VALUE(!options.transactional && !options.trace_nonfinite,
                    "fit: transactional and trace_nonfinite follow the Trainer's own steps, and this task "
                    "steps by itself; leave them out");
  TORCH_CHECK_VALUE(
      !parse_on_overflow(options.on_overflow),
      "fit: on_overflow=retry repeats the Trainer's own steps, and this task steps by itself; leave it "
      "out, and repeat a step in training_step() where its StepResult says that it was skipped");
}

}  // namespace

FitRun::FitRun(Trainer& trainer, Task& task, GradientClipAlgorithm clip_algorithm)
    : TrainerRun(trainer, Stage::kFit, task, Progress()),
      clip_algorithm_(clip_algorithm),
      is_automatic_(task.automatic_optimization()),
      retries_overflows_(parse_on_overflow(options_.on_overflow)),
      optimizers_(task, precision_),
      saved_precision_(precision_),
      saved_objects_(options_, task),
      saved_settings_(options_, batches_per_epoch_),
      decisions_(options_, progress_, stop_request_, strategy_),
      tracer_(options_, precision_, progress_, [this](const Batch& batch, int64_t index) {
        MeanMetrics logged_already;
        const LoggingInto scope(*this, {&logged_already});
        return forward(batch, index);
      }) {}

FitResult FitRun::fit(Loader& train, Loader* val, const std::filesystem::path& ckpt_path) {
  const InterruptScope interrupt;
  FitResult fit_result;
  run([&] {
    std::optional<torch::autograd::DetectAnomalyGuard> detect_anomaly;
    if (options_.detect_anomaly) detect_anomaly.emplace();
    set_up_loaders(train, options_.limit_val_batches.is_none() ? nullptr : val);
    set_up(ckpt_path);
    if (val_ && options_.num_sanity_val_steps != 0 && ckpt_path.empty() && !decide_between_epochs().end)
      check_sanity();
    for_each_callback([&](Callback& c) { c.on_train_start(trainer_); });
    while (batches_per_epoch_ > 0) {
      const Decision decision = decide_between_epochs();
      // A resumed run that has taken all its steps may still lack its last validation.
      if (decision.end && !decision.validate) break;
      train_epoch();
    }
    for_each_callback([&](Callback& c) { c.on_train_end(trainer_); });
    fit_result = result();
    for_each_callback([&](Callback& c) { c.on_fit_end(trainer_, fit_result); });
  });
  return fit_result;
}

void FitRun::check(const Loader& train, const Loader* val) const {
  check_loaders(train, val);
  check_task(task_, options_);
  TORCH_CHECK_VALUE(!retries_overflows_ || !precision_.is_loss_scale_fixed(),
                    "fit: on_overflow=retry lowers the loss scale, "
                    "which is fixed in this run of '",
                    precision_.name(), "': give loss_scale=dynamic, or on_overflow=skip");
}

void FitRun::set_up_loaders(Loader& train, Loader* val) {
  train_ = &train;
  val_ = val;
  if (!options_.overfit_batches.is_none()) {
    const int64_t count = options_.overfit_batches.of(train.size(), "overfit_batches");
    auto first_batches = std::make_unique<FirstBatches>(train, count);
    // Validation gets its own position in them: a validation inside the epoch must not move training's.
    if (val) same_batches_ = std::make_unique<FirstBatches>(*first_batches);
    first_batches_ = std::move(first_batches);
    train_ = first_batches_.get();
    val_ = same_batches_.get();
  }
  saved_objects_.set_loader(train_);
}

void FitRun::set_up(const std::filesystem::path& ckpt_path) {
  const std::string from = ckpt_path.string();
  std::optional<Checkpoint> checkpoint;
  if (!ckpt_path.empty()) checkpoint = read(ckpt_path);
  is_resuming_ = checkpoint.has_value();
  set_up_model();
  // This comes before the optimizers, because master weights are made from the weights.
  if (checkpoint) load_model(*checkpoint, from);
  strategy_.setup_module(task_.module());
  optimizers_.set_up(options_);
  strategy_.setup_optimizers(optimizers_.configs(), precision_);
  reduces_magnitudes_ = strategy_.world_size() > 1;
  if (reduces_magnitudes_) precision_.set_max_reduction(max_reduction(strategy_));
  for (OptimizerConfig& config : optimizers_.configs())
    task_optimizers_.push_back(TaskOptimizer(*this, config));
  set_up_epochs();
  for_each_callback([&](Callback& c) {
    c.on_fit_start(trainer_, {batches_per_epoch_, options_.max_epochs, options_.max_steps});
  });
  if (checkpoint) resume(*checkpoint, from);
}

void FitRun::set_up_epochs() {
  batches_per_epoch_ = options_.limit_train_batches.of(train_->size(), "limit_train_batches");
  if (val_) options_.limit_val_batches.of(val_->size(), "limit_val_batches");
  decisions_.set_up(batches_per_epoch_, val_ != nullptr);
  TORCH_CHECK_VALUE(
      val_ != train_ || !decisions_.validates_inside_epochs(),
      "fit: training and validation share a loader, which a validation inside an epoch would advance; "
      "give validation its own loader");
}

void FitRun::check_sanity() {
  const SameRandomNumbers untouched;
  const ScopedFlag sanity(is_sanity_checking_);
  for_each_callback([&](Callback& c) { c.on_sanity_check_start(trainer_); });
  const int64_t batches = options_.limit_val_batches.of(val_->size(), "limit_val_batches");
  const int64_t steps = options_.num_sanity_val_steps;
  validation_pass(*val_, steps < 0 ? batches : std::min(steps, batches));
  for_each_callback([&](Callback& c) { c.on_sanity_check_end(trainer_); });
}

void FitRun::train_epoch() {
  const FitProgress& now = progress_.now();
  const bool is_resumed = now.batches > 0;
  window_size_ = options_.accumulate_grad_batches.at(now.epoch);
  has_samples_ = is_resumed;  // the batches before the checkpoint may have had some
  if (!is_resumed) {
    random_numbers_.resume();
    metrics_.begin_epoch();
    optimizers_.begin_epoch();
  }
  train_->set_epoch(now.epoch);
  if (is_resumed) train_->skip(now.batches);
  for_each_callback([&](Callback& c) { c.on_train_epoch_start(trainer_, now.epoch); });
  // Reads one batch ahead, so that the epoch's last batch is known and each batch reaches a GPU in time.
  BatchTransfer transfer = batch_transfer();
  const auto begin_batch = [&](int64_t index) {
    std::optional<Batch> batch = index < batches_per_epoch_ ? train_->next() : std::nullopt;
    if (!batch) return false;
    transfer.begin(*std::move(batch));
    return true;
  };
  bool has_batch = begin_batch(now.batches);
  TORCH_CHECK_VALUE(has_batch || is_resumed || batches_per_epoch_ == 0,
                    "fit: the training loader gave no batch in epoch ", now.epoch,
                    "; a loader must restart at set_epoch()");
  // The checkpoint was written at this point: this batch had been fetched, and no validation had begun.
  random_numbers_.resume();
  bool ends_here = is_resumed && handle_boundary({.whole_epochs = now.epoch, .has_next = has_batch}, nullptr);
  while (has_batch && !ends_here) {
    const bool has_next = begin_batch(now.batches + 1);
    const TrainBatch done = train_batch(transfer, !has_next);
    for_each_callback([&](Callback& c) { c.on_train_batch_end(trainer_, done); });
    progress_.end_batch();
    logs_.end_row();  // the batch's row stays apart from the epoch's, whatever is saved between them
    has_batch = has_next;
    ends_here = handle_boundary(
        {.whole_epochs = now.epoch, .has_next = has_batch, .may_end = done.stepped || !is_automatic_}, &done);
  }
  TORCH_CHECK_VALUE(has_samples_ || has_batch || now.batches < train_->size(), "fit: none of the ",
                    now.batches, " batches of epoch ", now.epoch,
                    " has a sample, because all of them were skipped; give other data");
  // An epoch whose validation a signal has cut short is not over: a resumed run makes that validation.
  const bool lacks_validation = val_ && interrupted_by() != 0 && decisions_.is_validation_due();
  end_epoch(/*is_whole=*/!has_batch && !lacks_validation);
}

bool FitRun::handle_boundary(const Boundary& boundary, const TrainBatch* done) {
  Decisions::Vote wants_checkpoint;
  if (done) wants_checkpoint = [&](Callback& c) { return c.is_checkpoint_due(trainer_, *done); };
  Decision decision = decisions_.decide(boundary, wants_checkpoint);
  for (size_t i = 0; i < decision.save.size(); ++i)
    if (decision.save[i]) options_.callbacks[i]->on_checkpoint_due(trainer_);
  if (decision.validate) {
    validate();
    decision = decisions_.decide(boundary);  // a callback may have called stop() in the validation
  }
  return decision.end;
}

Decision FitRun::decide_between_epochs(bool epoch_is_over) {
  return decisions_.decide(
      {.whole_epochs = progress_.now().epoch + (epoch_is_over ? 1 : 0), .is_between_epochs = true});
}

void FitRun::end_epoch(bool is_whole) {
  const int64_t epoch = progress_.now().epoch;
  metrics_.end_training(progress_.now(), strategy_);
  if (decide_between_epochs(is_whole).validate) {
    validate();
    decide_between_epochs(is_whole);  // a signal may have cut the validation short
    is_whole = is_whole && progress_.is_validated();
  }
  metrics_.end_epoch();
  const Metrics& means = metrics_.of_epoch();
  // Means over a part of the epoch would appear next to those of the resumed run.
  if (is_whole || interrupted_by() == 0) logs_.add({means.begin(), means.end()}, progress_);
  if (is_whole) {
    progress_.end_epoch();
    if (is_automatic_) optimizers_.advance_epoch_schedules(progress_, metrics_);
  }
  for_each_callback([&](Callback& c) { c.on_epoch_end(trainer_, epoch, progress_.now().steps, means); });
}

void FitRun::validate() {
  validation_pass(*val_, options_.limit_val_batches.of(val_->size(), "limit_val_batches"));
}

/// A signal does not cut a validation short inside a window: training continues to the window's end, where
/// the validation would no longer be due.
bool FitRun::is_cut_short() const { return !progress_.is_inside_window() && TrainerRun::is_cut_short(); }

void FitRun::begin_validation() {
  if (!is_sanity_checking_) random_numbers_.begin_validation();
}

void FitRun::end_validation() {
  if (is_sanity_checking_) return;
  progress_.end_validation();
  random_numbers_.end_validation();
}

/// The Trainer keeps this run, and the loaders may be destroyed before it.
void FitRun::release() {
  if (std::exchange(reduces_magnitudes_, false)) precision_.set_max_reduction(nullptr);
  tracer_.clear();
  window_.clear();
  saved_objects_.set_loader(nullptr);
  train_ = val_ = nullptr;
  first_batches_.reset();
  same_batches_.reset();
}

FitResult FitRun::result() const {
  FitResult result;
  result.epochs = progress_.now().epoch;
  result.steps = progress_.now().steps;
  result.skipped_steps = progress_.skipped_steps().count();
  result.retries = progress_.retries();
  result.metrics = metrics_.of_epoch();
  result.seconds = progress_.own_seconds();
  result.step_ms = step_times_.median_ms();
  result.samples_per_second = step_times_.samples_per_second();
  result.peak_memory_bytes = peak_memory_bytes(trainer_.device());
  result.interrupted_by = interrupted_by();
  result.stopped_by = stop_request_.why();
  return result;
}

}  // namespace mantissa
