// Passes without gradients: validation, test, prediction.
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include "mantissa/core/evaluation_mode.h"
#include "mantissa/trainer/loop/decisions_internal.h"
#include "mantissa/trainer/loop/evaluation_run_internal.h"

namespace mantissa {
namespace {

void check_not_empty(const Loader& loader, const char* what) {
  TORCH_CHECK_VALUE(loader.size() > 0, what,
                    ": the loader has no batches; give a dataset with at least one sample");
}

}  // namespace

bool TrainerRun::is_cut_short() const { return is_evaluation_cut_short(strategy_); }

bool TrainerRun::evaluate(Loader& loader, int64_t batches,
                          const std::function<void(const Batch&, int64_t)>& step) {
  const EvaluationMode evaluation(task_.module());
  BatchTransfer transfer = batch_transfer();
  // Batches are fetched outside inference mode: a dataset that keeps a tensor could not train on it later.
  const auto begin_next = [&] {
    std::optional<Batch> batch = batches-- > 0 ? loader.next() : std::nullopt;
    if (batch) {
      transfer.begin(*std::move(batch));
    } else {
      batches = 0;
    }
  };
  const int64_t most_batches = common_batches(strategy_, batches);
  bool has_samples = false;
  loader.set_epoch(0);
  // A GPU computes with one batch while the next is on its way.
  if (!trainer_.device().is_cpu()) begin_next();
  for (int64_t index = 0; index < most_batches; ++index) {
    begin_next();
    if (is_cut_short()) return false;
    if (transfer.empty()) continue;
    const c10::InferenceMode inference(options_.inference_mode);
    const at::NoGradGuard no_gradients;
    const Batch batch = take(transfer);
    if (batch.is_empty()) continue;
    has_samples = true;
    step(batch, index);
  }
  TORCH_CHECK_VALUE(has_samples || most_batches < loader.size(), "none of the ", most_batches,
                    " batches to evaluate has a sample, because all of them were skipped; give other data");
  return true;
}

Metrics TrainerRun::validation_pass(Loader& val, int64_t batches) {
  begin_validation();
  for_each_callback([&](Callback& c) { c.on_validation_start(trainer_); });
  MeanMetrics means;
  const LoggingInto scope(*this, {&means});
  const bool is_whole = evaluate(val, batches, [&](const Batch& batch, int64_t index) {
    {
      const Scope forward = precision_.forward_context();
      task_.validation_step(batch, index);
    }
    for_each_callback([&](Callback& c) { c.on_validation_batch_end(trainer_, index); });
  });
  // Means over some of the batches would look like means over all.
  const Metrics result = is_whole ? means.compute(strategy_) : Metrics();
  // Comes before the callbacks: a checkpoint that one of them saves now counts as validated.
  if (is_whole) end_validation();
  if (!is_sanity_checking_) {
    metrics_.set_validation(result);
    logs_.add({result.begin(), result.end()}, progress_);
  }
  for_each_callback([&](Callback& c) { c.on_validation_end(trainer_); });
  return result;
}

Metrics EvaluationRun::validate(Loader& val) {
  Metrics result;
  run([&] {
    check_not_empty(val, "validate");
    const int64_t batches = options_.limit_val_batches.of(val.size(), "limit_val_batches");
    set_up_model();
    result = validation_pass(val, batches);
  });
  return result;
}

Metrics EvaluationRun::test(Loader& test) {
  run([&] {
    check_not_empty(test, "test");
    const int64_t batches = options_.limit_test_batches.of(test.size(), "limit_test_batches");
    set_up_model();
    for_each_callback([&](Callback& c) { c.on_test_start(trainer_); });
    MeanMetrics means;
    const LoggingInto scope(*this, {&means});
    const bool is_whole = evaluate(test, batches, [&](const Batch& batch, int64_t index) {
      {
        const Scope forward = precision_.forward_context();
        task_.test_step(batch, index);
      }
      for_each_callback([&](Callback& c) { c.on_test_batch_end(trainer_, index); });
    });
    if (is_whole) metrics_.set_test(means.compute(strategy_));
    logs_.add({metrics_.newest().begin(), metrics_.newest().end()}, progress_);
    for_each_callback([&](Callback& c) { c.on_test_end(trainer_); });
  });
  return metrics_.newest();
}

std::vector<c10::IValue> EvaluationRun::predict(Loader& data, bool return_predictions) {
  std::vector<c10::IValue> predictions;
  run([&] {
    check_not_empty(data, "predict");
    const int64_t batches = options_.limit_predict_batches.of(data.size(), "limit_predict_batches");
    set_up_model();
    for_each_callback([&](Callback& c) { c.on_predict_start(trainer_); });
    evaluate(data, batches, [&](const Batch& batch, int64_t index) {
      c10::IValue prediction;
      {
        const Scope forward = precision_.forward_context();
        prediction = task_.predict_step(batch, index);
      }
      if (prediction.isTensor() && prediction.toTensor().defined())
        prediction = precision_.convert_output(prediction.toTensor());
      for_each_callback([&](Callback& c) { c.on_predict_batch_end(trainer_, prediction, index); });
      if (return_predictions) predictions.push_back(std::move(prediction));
    });
    for_each_callback([&](Callback& c) { c.on_predict_end(trainer_); });
  });
  return predictions;
}

}  // namespace mantissa
