#include "mantissa/trainer/classification_task.h"

#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "mantissa/precision/chunked_cross_entropy.h"

namespace mantissa {
namespace {

struct Scored {
  at::Tensor logits;  ///< [positions, classes], float32 or float64
  at::Tensor target;  ///< [positions]
};

Scored score(const ClassificationTask::Forward& forward, const Batch& batch) {
  const at::Tensor logits = forward(batch.data);
  TORCH_CHECK_VALUE(batch.target.defined() && logits.dim() == batch.target.dim() + 1 &&
                        logits.sizes().slice(0, logits.dim() - 1) == batch.target.sizes(),
                    "ClassificationTask: logits ", logits.sizes(), " do not fit targets ",
                    batch.target.defined() ? c10::str(batch.target.sizes()) : "(none)",
                    "; logits are [..., classes] where targets are [...]");
  const bool reduced = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
  return {(reduced ? logits.to(at::kFloat) : logits).flatten(0, -2), batch.target.flatten()};
}

}  // namespace

ClassificationTask::ClassificationTask(std::shared_ptr<torch::nn::Module> module, Forward forward,
                                       MakeOptimizer make_optimizer)
    : module_(std::move(module)), forward_(std::move(forward)), make_optimizer_(std::move(make_optimizer)) {}

ClassificationTask::MakeOptimizer ClassificationTask::optimizer_called(const std::string& name,
                                                                       const OptimizerSettings& settings) {
  find_optimizer(name);  // its error belongs here, not into the fit
  return [=](torch::nn::Module& module) { return OptimizerConfig{make_optimizer(name, module, settings)}; };
}

void ClassificationTask::set_chunked_loss(Forward hidden_states, Forward output_layer, int64_t chunk) {
  TORCH_CHECK_VALUE(
      hidden_states && output_layer,
      "ClassificationTask: a chunked loss needs both parts of the forward pass; give the hidden "
      "states and the output layer");
  TORCH_CHECK_VALUE(chunk > 0, "ClassificationTask: a chunked loss in chunks of ", chunk,
                    " positions; give at least 1, such as 1024");
  hidden_states_ = std::move(hidden_states);
  output_layer_ = std::move(output_layer);
  chunk_ = chunk;
}

at::Tensor ClassificationTask::training_step(const Batch& batch, int64_t /*batch_index*/) {
  if (chunk_ > 0)
    return chunked_cross_entropy(output_layer_, hidden_states_(batch.data), batch.target, chunk_);
  const auto [logits, target] = score(forward_, batch);
  return at::cross_entropy_loss(logits, target);
}

std::pair<at::Tensor, at::Tensor> ClassificationTask::scores(const Batch& batch) {
  if (chunk_ > 0) {
    const auto [loss, correct] =
        chunked_scores(output_layer_, hidden_states_(batch.data), batch.target, chunk_);
    return {loss, correct.to(at::kFloat) / batch.target.numel()};
  }
  const auto [logits, target] = score(forward_, batch);
  return {at::cross_entropy_loss(logits, target), logits.argmax(-1).eq(target).to(at::kFloat).mean()};
}

void ClassificationTask::log_scores(const char* prefix, const Batch& batch) {
  const auto [loss, accuracy] = scores(batch);
  const std::string name = prefix;
  log(name + "_loss", loss);
  log(name + "_accuracy", accuracy);
}

void ClassificationTask::validation_step(const Batch& batch, int64_t /*batch_index*/) {
  log_scores("val", batch);
}

void ClassificationTask::test_step(const Batch& batch, int64_t /*batch_index*/) { log_scores("test", batch); }

c10::IValue ClassificationTask::predict_step(const Batch& batch, int64_t /*batch_index*/) {
  return forward_(batch.data);
}

}  // namespace mantissa
