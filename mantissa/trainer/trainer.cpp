#include "mantissa/trainer/trainer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "mantissa/core/device.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/loop/evaluation_run_internal.h"
#include "mantissa/trainer/loop/fit_run_internal.h"
#include "mantissa/trainer/strategy.h"

namespace mantissa {
namespace {

/// The value for a Trainer that has not run.
template <typename T>
const T& none() {
  static const T value{};
  return value;
}

}  // namespace

Trainer::Trainer(TrainerOptions options)
    : options_((check(options), std::move(options))),
      device_(resolve_device(options_.device)),
      precision_(options_.precision_plugin) {
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

std::shared_ptr<TrainerRun> Trainer::last_run() const {
  const std::lock_guard lock(mutex_);
  return run_;
}

template <typename Run>
Run& Trainer::begin(std::shared_ptr<Run> run) {
  TORCH_CHECK(!run_ || !run_->is_active(), "Trainer: another run is active; use another Trainer inside it");
  run->check_task_is_free();
  const std::lock_guard lock(mutex_);
  run_ = run;
  return *run;
}

FitResult Trainer::fit(Task& task, Loader& train, Loader* val, const std::filesystem::path& ckpt_path) {
  const auto run =
      std::make_shared<FitRun>(*this, task, parse_clip_algorithm(options_.gradient_clip_algorithm));
  run->check(train, val);  // a fit that is refused leaves the last one's progress and optimizers
  begin(run);
  last_fit_ = run;
  return run->fit(train, val, ckpt_path);
}

EvaluationRun& Trainer::begin_evaluation(Stage stage, Task& task) {
  return begin(
      std::make_shared<EvaluationRun>(*this, stage, task, last_fit_ ? last_fit_->progress() : Progress()));
}

Metrics Trainer::validate(Task& task, Loader& val) {
  return begin_evaluation(Stage::kValidate, task).validate(val);
}

Metrics Trainer::test(Task& task, Loader& test) { return begin_evaluation(Stage::kTest, task).test(test); }

std::vector<c10::IValue> Trainer::predict(Task& task, Loader& data, bool return_predictions) {
  return begin_evaluation(Stage::kPredict, task).predict(data, return_predictions);
}

void Trainer::stop(std::string why) {
  if (const auto run = last_run()) run->stop_request().request(std::move(why));
}

std::string Trainer::stopped_by() const {
  const auto run = last_run();
  return run ? run->stop_request().why() : "";
}

Checkpoint Trainer::checkpoint() {
  FitRun* const fit = run_ ? run_->as_fit() : nullptr;
  TORCH_CHECK(fit && fit->is_active(),
              "Trainer::checkpoint: no fit is running; call it from a callback, or use save_weights()");
  return fit->checkpoint();
}

void Trainer::log_metrics(const MetricValues& metrics) {
  TORCH_CHECK(run_ && run_->is_active(), "Trainer::log_metrics: no run is active; call it from a callback");
  run_->logs().add(metrics, run_->progress());
}

bool Trainer::should_log() const { return run_ && run_->logs().makes_row(); }

void Trainer::save_logs() {
  if (const auto run = last_run()) run->logs().save_to_disk();
}

torch::nn::Module* Trainer::module() const { return run_ ? run_->module() : nullptr; }

torch::optim::Optimizer* Trainer::optimizer() const {
  return optimizers().empty() ? nullptr : optimizers().front().optimizer.get();
}

const std::vector<OptimizerConfig>& Trainer::optimizers() const {
  return last_fit_ ? last_fit_->optimizers() : none<std::vector<OptimizerConfig>>();
}

Stage Trainer::stage() const { return run_ ? run_->stage() : Stage::kFit; }

const FitProgress& Trainer::progress() const {
  return last_fit_ ? last_fit_->progress().now() : none<FitProgress>();
}

const SkippedSteps& Trainer::skipped_steps() const {
  return last_fit_ ? last_fit_->progress().skipped_steps() : none<SkippedSteps>();
}

FitProgress Trainer::resumes_at() const {
  return last_fit_ ? last_fit_->progress().resumes_at() : FitProgress();
}

bool Trainer::resumes_exactly() const { return !last_fit_ || last_fit_->progress().resumes_exactly(); }

const Metrics& Trainer::callback_metrics() const { return run_ ? run_->metrics().newest() : none<Metrics>(); }

std::optional<double> Trainer::metric_now(const std::string& name) const {
  return run_ ? run_->metrics().value_now(name, run_->progress()) : std::nullopt;
}

bool Trainer::is_sanity_checking() const { return run_ && run_->is_sanity_checking(); }

int Trainer::interrupted_by() const { return run_ ? run_->interrupted_by() : 0; }

bool Trainer::is_global_zero() const { return !options_.strategy || options_.strategy->is_global_zero(); }

}  // namespace mantissa
