// Passes without gradients: validation, test, prediction.
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include "mantissa/core/rng_state.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/loop/logging_into_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

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

void check_not_empty(const Loader& loader, const char* what) {
  TORCH_CHECK_VALUE(loader.size() > 0, what,
                    ": the loader has no batches; give a dataset with at least one sample");
}

}  // namespace

bool Trainer::evaluate(Task& task, Loader& loader, int64_t batches,
                       const std::function<void(const Batch&, int64_t)>& step) {
  const EvaluationMode evaluation(task.module());
  BatchTransfer transfer = batch_transfer();
  // Fetched outside inference mode: a dataset that keeps a tensor could not train on it later.
  const auto begin_next = [&] {
    std::optional<Batch> batch = batches-- > 0 ? loader.next() : std::nullopt;
    if (batch) transfer.begin(*std::move(batch));
  };
  loader.set_epoch(0);
  if (!device_.is_cpu()) begin_next();  // which computes with one batch while the next is on its way
  for (int64_t index = 0;; ++index) {
    begin_next();
    if (transfer.empty()) break;
    // Inside a window training goes on to its end, where this validation would no longer be due.
    if (InterruptScope::requested() && (stage_ != Stage::kFit || window_batches_ == 0)) return false;
    const c10::InferenceMode inference(options_.inference_mode);
    const at::NoGradGuard no_gradients;
    step(take(transfer), index);
  }
  return true;
}

Metrics Trainer::run_validation(Task& task, Loader& val, int64_t batches) {
  const bool is_of_training = stage_ == Stage::kFit && !is_sanity_checking_;
  if (is_of_training) validation_rng_ = rng_state();
  tell([&](Callback& c) { c.on_validation_start(*this); });
  MeanMetrics metrics;
  const LoggingInto scope(logging_, metrics);
  const bool is_whole = evaluate(task, val, batches, [&](const Batch& batch, int64_t index) {
    {
      const Scope forward = precision_->forward_context();
      task.validation_step(batch, index);
    }
    tell([&](Callback& c) { c.on_validation_batch_end(*this, index); });
  });
  // Means over some of the batches would pass for all.
  const Metrics result = is_whole ? metrics.compute() : Metrics();
  // Before callbacks hear of it: what one of them saves now was validated.
  if (is_of_training && is_whole) {
    progress_.validated_batches = progress_.total_batches;
    validation_rng_.reset();
  }
  if (!is_sanity_checking_) {
    for (const auto& [name, value] : result) callback_metrics_[name] = validation_metrics_[name] = value;
    log_metrics({result.begin(), result.end()});
  }
  tell([&](Callback& c) { c.on_validation_end(*this); });
  return result;
}

Metrics Trainer::validate(Task& task, Loader& val) {
  Metrics result;
  run(Stage::kValidate, task, [&] {
    check_not_empty(val, "validate");
    const int64_t batches = options_.limit_val_batches.of(val.size(), "limit_val_batches");
    set_up_model(task);
    callback_metrics_.clear();
    result = run_validation(task, val, batches);
  });
  return result;
}

Metrics Trainer::test(Task& task, Loader& test) {
  run(Stage::kTest, task, [&] {
    check_not_empty(test, "test");
    const int64_t batches = options_.limit_test_batches.of(test.size(), "limit_test_batches");
    set_up_model(task);
    callback_metrics_.clear();
    tell([&](Callback& c) { c.on_test_start(*this); });
    MeanMetrics metrics;
    const LoggingInto scope(logging_, metrics);
    const bool is_whole = evaluate(task, test, batches, [&](const Batch& batch, int64_t index) {
      {
        const Scope forward = precision_->forward_context();
        task.test_step(batch, index);
      }
      tell([&](Callback& c) { c.on_test_batch_end(*this, index); });
    });
    if (is_whole) callback_metrics_ = metrics.compute();
    log_metrics({callback_metrics_.begin(), callback_metrics_.end()});
    tell([&](Callback& c) { c.on_test_end(*this); });
  });
  return callback_metrics_;
}

std::vector<c10::IValue> Trainer::predict(Task& task, Loader& data, bool return_predictions) {
  std::vector<c10::IValue> predictions;
  run(Stage::kPredict, task, [&] {
    check_not_empty(data, "predict");
    const int64_t batches = options_.limit_predict_batches.of(data.size(), "limit_predict_batches");
    set_up_model(task);
    tell([&](Callback& c) { c.on_predict_start(*this); });
    evaluate(task, data, batches, [&](const Batch& batch, int64_t index) {
      c10::IValue prediction;
      {
        const Scope forward = precision_->forward_context();
        prediction = task.predict_step(batch, index);
      }
      if (prediction.isTensor() && prediction.toTensor().defined())
        prediction = precision_->convert_output(prediction.toTensor());
      tell([&](Callback& c) { c.on_predict_batch_end(*this, prediction, index); });
      if (return_predictions) predictions.push_back(std::move(prediction));
    });
    tell([&](Callback& c) { c.on_predict_end(*this); });
  });
  return predictions;
}

}  // namespace mantissa
