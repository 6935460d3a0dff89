// Epochs: which batch comes next, when to validate, when to end.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "mantissa/core/device.h"
#include "mantissa/core/rng_state.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/loop/same_random_numbers_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// Step times that are kept for the median.
constexpr size_t kStepTimes = 10'000;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The first batches of a loader's epoch 0, again and again.
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

/// What only training tells: whether the task and the options fit together (ERR-11 to ERR-13).
void check_task(const Task& task, const TrainerOptions& options) {
  if (task.automatic_optimization()) return;
  TORCH_CHECK_VALUE(options.gradient_clip_val == 0, "fit: gradient_clip_val=", options.gradient_clip_val,
                    " is for automatic optimization, and this task steps by itself: leave it out, and call "
                    "TaskOptimizer::clip_gradients() before step()");
  TORCH_CHECK_VALUE(options.accumulate_grad_batches.is_always(1),
                    "fit: accumulate_grad_batches=", options.accumulate_grad_batches.to_string(),
                    " is for automatic optimization, and this task steps by itself: leave it out, and step "
                    "every so many batches");
  TORCH_CHECK_VALUE(!options.transactional && !options.trace_nonfinite,
                    "fit: transactional and trace_nonfinite follow the Trainer's own steps, and this task "
                    "steps by itself; leave them out");
}

void check_optimizers(const std::vector<OptimizerConfig>& configs, const TrainerOptions& options,
                      bool is_automatic) {
  TORCH_CHECK_VALUE(!configs.empty(), "fit: configure_optimizers() returned no optimizer");
  for (size_t i = 0; i < configs.size(); ++i) {
    TORCH_CHECK_VALUE(configs[i].optimizer, "fit: optimizer ", i, " of configure_optimizers() is null");
    TORCH_CHECK_VALUE(configs[i].frequency >= 1, "fit: optimizer ", i,
                      " of configure_optimizers() has a schedule with frequency ", configs[i].frequency,
                      "; give at least 1");
    for (size_t j = 0; j < i; ++j)
      TORCH_CHECK_VALUE(configs[i].optimizer != configs[j].optimizer, "fit: optimizers ", j, " and ", i,
                        " of configure_optimizers() are one; return it once");
  }
  TORCH_CHECK_VALUE(configs.size() == 1 || !is_automatic, "fit: configure_optimizers() returned ",
                    configs.size(),
                    " optimizers, and which of them a loss is for only the task knows: override "
                    "automatic_optimization() to return false, and step them in training_step()");
  TORCH_CHECK_TYPE(
      options.accumulate_grad_batches.is_always(1) || !has_line_search(*configs.front().optimizer),
      "fit: LBFGS evaluates the last batch of a window several times, which accumulate_grad_batches=",
      options.accumulate_grad_batches.to_string(), " cannot follow; set it to 1, or take another optimizer");
}

}  // namespace

FitResult Trainer::fit(Task& task, Loader& train, Loader* val, const std::filesystem::path& ckpt_path) {
  start_ = Clock::now();
  const InterruptScope interrupt;
  FitResult result;
  run(Stage::kFit, task, [&] {
    check_loaders(train, val);
    check_task(task, options_);
    std::optional<torch::autograd::DetectAnomalyGuard> detect_anomaly;
    if (options_.detect_anomaly) detect_anomaly.emplace();
    std::optional<FirstBatches> first_batches, same_batches;
    Loader* from = &train;
    if (!options_.overfit_batches.is_none()) {
      first_batches.emplace(train, options_.overfit_batches.of(train.size(), "overfit_batches"));
      from = &*first_batches;
      // Its own place in them: a validation inside the epoch must not move training's.
      if (val) val = &same_batches.emplace(*first_batches);
    }
    if (options_.limit_val_batches.is_none()) val = nullptr;
    std::optional<Checkpoint> checkpoint;
    if (!ckpt_path.empty()) checkpoint = read(ckpt_path);
    set_up_model(task);
    // Before the optimizers, whose master weights are made from the weights.
    if (checkpoint) {
      load_model(task, *checkpoint, ckpt_path.string());
      tell([&](Callback& c) { c.on_load_checkpoint(*this, *checkpoint); });
      load_master_weights(task, *checkpoint, ckpt_path.string());
    }
    set_up_optimizers(task);
    set_up_fit(*from, val);
    train_loader_ = from;
    tell([&](Callback& c) {
      c.on_fit_start(*this, {batches_per_epoch_, options_.max_epochs, options_.max_steps});
    });
    if (checkpoint) {
      resume(*checkpoint, ckpt_path.string());
      resume_logs(StateReader(checkpoint->state, ckpt_path.string()));
    }
    checkpoint.reset();
    if (val && options_.num_sanity_val_steps != 0 && ckpt_path.empty() && !wants_end(progress_.epoch))
      check_sanity(task, *val);
    tell([&](Callback& c) { c.on_train_start(*this); });
    while (batches_per_epoch_ > 0 && (!wants_end(progress_.epoch) || lacks_last_validation(val)))
      train_epoch(task, *from, val);
    window_.clear();
    before_window_.reset();
    tell([&](Callback& c) { c.on_train_end(*this); });
    result = fit_result();
    tell([&](Callback& c) { c.on_fit_end(*this, result); });
  });
  return result;
}

void Trainer::set_up_optimizers(Task& task) {
  is_automatic_ = task.automatic_optimization();
  optimizers_ = task.configure_optimizers();
  check_optimizers(optimizers_, options_, is_automatic_);
  task_optimizers_.clear();
  for (OptimizerConfig& config : optimizers_) {
    precision_->setup_optimizer(*config.optimizer);
    task_optimizers_.push_back(TaskOptimizer(*this, config));
  }
}

void Trainer::set_up_fit(const Loader& train, const Loader* val) {
  batches_per_epoch_ = options_.limit_train_batches.of(train.size(), "limit_train_batches");
  if (val) options_.limit_val_batches.of(val->size(), "limit_val_batches");
  validate_every_ = batches_per_epoch_;
  if (!options_.val_check_interval.is_all()) {
    const bool is_share = options_.val_check_interval.is_share();
    // A share of an epoch that is shorter than one batch is one, as Lightning has it.
    validate_every_ =
        is_share ? options_.val_check_interval.of_at_least_one(batches_per_epoch_)
                 : options_.val_check_interval.of(std::numeric_limits<int64_t>::max(), "val_check_interval");
    TORCH_CHECK_VALUE(
        !val || is_share || !options_.check_val_every_n_epoch || validate_every_ <= batches_per_epoch_,
        "fit: val_check_interval=", options_.val_check_interval.to_string(), " is above the ",
        batches_per_epoch_,
        " batches of an epoch; lower it, or unset check_val_every_n_epoch to count batches "
        "over all epochs");
  }
  const bool inside = validate_every_ < batches_per_epoch_ || !options_.check_val_every_n_epoch;
  TORCH_CHECK_VALUE(
      val != &train || !inside,
      "fit: training and validation read from one loader, which a validation inside an epoch would "
      "move; give validation a loader of its own");
  progress_ = {};
  seconds_before_ = 0;
  callback_metrics_.clear();
  epoch_metrics_.clear();
  validation_metrics_.clear();
  training_metrics_.reset();
  window_metrics_.reset();
  measured_batches_ = -1;
  skipped_steps_ = SkippedSteps();
  epoch_steps_.assign(optimizers_.size(), 0);
  epoch_skips_.assign(optimizers_.size(), SkippedSteps());
  unstepped_.assign(optimizers_.size(), false);
  validation_rng_.reset();
  window_batches_ = 0;
  interrupted_by_ = 0;
  step_ms_.clear();
  train_ms_ = samples_ = 0;
  traces_left_ = TrainerOptions::kMaxTraces;
  overflows_in_a_row_ = 0;
  told_of_scale_ = false;
  told_of_.clear();
}

void Trainer::check_sanity(Task& task, Loader& val) {
  const SameRandomNumbers untouched;
  is_sanity_checking_ = true;
  tell([&](Callback& c) { c.on_sanity_check_start(*this); });
  const int64_t batches = options_.limit_val_batches.of(val.size(), "limit_val_batches");
  const int64_t steps = options_.num_sanity_val_steps;
  run_validation(task, val, steps < 0 ? batches : std::min(steps, batches));
  tell([&](Callback& c) { c.on_sanity_check_end(*this); });
  is_sanity_checking_ = false;
}

bool Trainer::wants_end(int64_t epochs) {
  interrupted_by_ = InterruptScope::requested();
  if (interrupted_by_ != 0) return true;
  if (options_.max_epochs >= 0 && epochs >= options_.max_epochs) return true;
  if (options_.max_steps >= 0 && progress_.steps >= options_.max_steps) return true;
  if (options_.max_time && seconds_so_far() * 1e3 >= static_cast<double>(options_.max_time->count()))
    return true;
  return should_stop() && epochs >= options_.min_epochs && progress_.steps >= options_.min_steps;
}

bool Trainer::validation_is_due() const {
  if (progress_.batches == 0 || progress_.validated_batches == progress_.total_batches) return false;
  if (!options_.check_val_every_n_epoch) return progress_.total_batches % validate_every_ == 0;
  return (progress_.epoch + 1) % *options_.check_val_every_n_epoch == 0 &&
         progress_.batches % validate_every_ == 0;
}

/// Of a run that goes on though all its steps were taken: what it ended on was not validated to the end.
bool Trainer::lacks_last_validation(const Loader* val) const {
  return val && interrupted_by_ == 0 && progress_.batches > 0 &&
         progress_.validated_batches != progress_.total_batches;
}

void Trainer::validate_now(Task& task, Loader& val) {
  run_validation(task, val, options_.limit_val_batches.of(val.size(), "limit_val_batches"));
}

void Trainer::train_epoch(Task& task, Loader& train, Loader* val) {
  const bool is_begun = progress_.batches > 0;  // by the run that this one goes on from
  accumulate_ = options_.accumulate_grad_batches.at(progress_.epoch);
  if (!is_begun) {
    resume_random_numbers();
    training_metrics_.reset();
    validation_metrics_.clear();
    epoch_steps_.assign(optimizers_.size(), 0);
    epoch_skips_.assign(optimizers_.size(), SkippedSteps());
  }
  train.set_epoch(progress_.epoch);
  if (is_begun) train.skip(progress_.batches);
  tell([&](Callback& c) { c.on_train_epoch_start(*this, progress_.epoch); });
  bool ends_here = is_begun && wants_end(progress_.epoch);
  // One batch ahead, so that the last batch of the epoch is known to be it, and reaches a GPU in time.
  BatchTransfer transfer = batch_transfer();
  const auto begin_batch = [&](int64_t index) {
    std::optional<Batch> batch = index < batches_per_epoch_ ? train.next() : std::nullopt;
    if (!batch) return false;
    transfer.begin(*std::move(batch));
    return true;
  };
  bool has_batch = begin_batch(progress_.batches);
  TORCH_CHECK_VALUE(has_batch || is_begun || batches_per_epoch_ == 0,
                    "fit: the training loader gave no batch in epoch ", progress_.epoch,
                    "; a loader must begin again at set_epoch()");
  // As when the checkpoint was written: this batch had been fetched, and no validation begun.
  resume_random_numbers();
  if (val && interrupted_by_ == 0 && validation_is_due()) {
    validate_now(task, *val);
    ends_here = wants_end(progress_.epoch);
  }
  while (has_batch && !ends_here) {
    const bool has_next = begin_batch(progress_.batches + 1);
    const bool ends_window = window_batches_ + 1 == accumulate_ || !has_next;
    const TrainBatch done = train_batch(task, transfer, ends_window);
    ++progress_.batches;
    ++progress_.total_batches;
    note_batch(done);
    if (done.stepped) advance_step_schedules(done.step);
    tell([&](Callback& c) { c.on_train_batch_end(*this, done); });
    in_step_ = false;
    end_row();  // one of its own in every run, whatever is saved between it and the epoch's
    has_batch = has_next;
    const bool may_end = done.stepped || !is_automatic_;
    ends_here = may_end && wants_end(progress_.epoch);
    if (val && interrupted_by_ == 0 && (!ends_here || !has_batch) && validation_is_due()) {
      validate_now(task, *val);
      ends_here = may_end && wants_end(progress_.epoch);  // what was measured may have called stop()
    }
  }
  // An epoch whose validation a signal has cut short is not over: a run that goes on from here validates it.
  const bool lacks_validation = val && interrupted_by_ != 0 && validation_is_due();
  end_epoch(task, val, /*is_whole=*/!has_batch && !lacks_validation);
}

void Trainer::end_epoch(Task& task, Loader* val, bool is_whole) {
  epoch_metrics_ = training_metrics_.compute();
  measured_batches_ = progress_.total_batches;
  for (const auto& [name, value] : epoch_metrics_) {
    if (!validation_metrics_.contains(name)) callback_metrics_[name] = value;
  }
  const int64_t epoch = progress_.epoch;
  // What the run ends on is validated, whatever the interval.
  if (val && wants_end(epoch + is_whole) && interrupted_by_ == 0 &&
      progress_.validated_batches != progress_.total_batches) {
    validate_now(task, *val);
    interrupted_by_ = InterruptScope::requested();
    is_whole = is_whole && progress_.validated_batches == progress_.total_batches;
  }
  for (const auto& [name, value] : validation_metrics_) epoch_metrics_[name] = value;  // its word is the last
  // Means over a part of the epoch would stand beside those of the run that goes on from here.
  if (is_whole || interrupted_by_ == 0) log_metrics({epoch_metrics_.begin(), epoch_metrics_.end()});
  if (is_whole) {
    ++progress_.epoch;
    progress_.batches = 0;
    advance_schedules(OptimizerConfig::Interval::kEpoch);
  }
  tell([&](Callback& c) { c.on_epoch_end(*this, epoch, progress_.steps, epoch_metrics_); });
}

void Trainer::note_batch(const TrainBatch& done) {
  samples_ += batch_weight_;
  train_ms_ += done.step_ms;
  if (step_ms_.size() < kStepTimes) {
    step_ms_.push_back(done.step_ms);
  } else {
    step_ms_[static_cast<size_t>(progress_.total_batches) % kStepTimes] = done.step_ms;
  }
}

bool Trainer::has_stepped(size_t optimizer) const {
  return epoch_steps_[optimizer] > epoch_skips_[optimizer].count();
}

void Trainer::advance_step_schedules(const StepResult& step) {
  const bool is_wanted =
      is_automatic_ && std::any_of(optimizers_.begin(), optimizers_.end(), [](const OptimizerConfig& config) {
        return config.scheduler && config.interval == OptimizerConfig::Interval::kStep;
      });
  // Only a schedule asks, so that other runs do not wait for the device in each step.
  if (is_wanted && !step.skipped()) advance_schedules(OptimizerConfig::Interval::kStep);
}

void Trainer::advance_schedules(OptimizerConfig::Interval interval) {
  if (!is_automatic_) return;  // the task's own
  const bool by_epoch = interval == OptimizerConfig::Interval::kEpoch;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const OptimizerConfig& config = optimizers_[i];
    const bool has_one = (config.scheduler && config.interval == interval) || (config.plateau && by_epoch);
    if (!has_one) continue;
    const int64_t count = by_epoch ? progress_.epoch : progress_.steps - skipped_steps_.count();
    if (count % config.frequency != 0 || !has_stepped(i)) continue;
    if (config.scheduler && config.interval == interval) config.scheduler->step();
    if (config.plateau && by_epoch) {
      const auto found = epoch_metrics_.find(config.monitor);
      if (found != epoch_metrics_.end()) {
        config.plateau->step(static_cast<float>(found->second));
      } else {
        TORCH_CHECK_VALUE(callback_metrics_.contains(config.monitor), "fit: the schedule of optimizer ", i,
                          " monitors '", config.monitor, "', which was not logged; logged were ",
                          join_names(keys_of(callback_metrics_)));
      }
    }
  }
}

FitResult Trainer::fit_result() {
  FitResult result;
  result.epochs = progress_.epoch;
  result.steps = progress_.steps;
  result.skipped_steps = skipped_steps_.count();
  result.metrics = epoch_metrics_;
  result.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  result.step_ms = median(step_ms_);
  result.samples_per_second = train_ms_ > 0 ? samples_ / train_ms_ * 1e3 : 0;
  result.peak_memory_bytes = peak_memory_bytes(device_);
  result.interrupted_by = interrupted_by_;
  result.stopped_by = stopped_by();
  return result;
}

}  // namespace mantissa
