#include "mantissa/trainer/classification_task.h"

#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "mantissa/precision/chunked_cross_entropy.h"

namespace mantissa {
namespace {

constexpr int64_t kIgnored = -100;  // torch's ignore_index

at::Tensor counted(const at::Tensor& target) { return target.ne(kIgnored).sum(); }

struct Scored {
  at::Tensor logits;  ///< [positions, classes], float32 or float64
  at::Tensor target;  ///< [positions], or shares of the classes in the shape and dtype of the logits

  at::Tensor loss() const { return at::cross_entropy_loss(logits, target); }
  /// The share of positions that count whose largest logit is that of the target.
  at::Tensor accuracy() const {
    if (target.is_floating_point()) return logits.argmax(-1).eq(target.argmax(-1)).to(at::kFloat).mean();
    return logits.argmax(-1).eq(target).sum().to(at::kFloat) / counted(target);
  }
};

Scored score(const ClassificationTask::Forward& forward, const Batch& batch) {
  const at::Tensor logits = forward(batch.data);
  const at::Tensor& target = batch.target;
  const bool has_shares = target.defined() && target.is_floating_point();
  TORCH_CHECK_VALUE(
      target.defined() && logits.dim() > 1 &&
          (has_shares ? logits.sizes() : logits.sizes().slice(0, logits.dim() - 1)) == target.sizes(),
      "ClassificationTask: logits ", logits.sizes(), " do not fit ",
      has_shares ? "floating-point targets " : "targets ",
      target.defined() ? c10::str(target.sizes()) : "(none)",
      "; logits are [samples, ..., classes] where targets are numbers of classes [samples, ...] or shares "
      "of them [samples, ..., classes]");
  const bool reduced = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
  const at::Tensor wide = (reduced ? logits.to(at::kFloat) : logits).flatten(0, -2);
  return {wide, has_shares ? target.flatten(0, -2).to(wide.scalar_type()) : target.flatten()};
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
  return score(forward_, batch).loss();
}

std::pair<at::Tensor, at::Tensor> ClassificationTask::scores(const Batch& batch) {
  if (chunk_ > 0) {
    const auto [loss, correct] =
        chunked_scores(output_layer_, hidden_states_(batch.data), batch.target, chunk_);
    return {loss, correct.to(at::kFloat) / counted(batch.target)};
  }
  const Scored scored = score(forward_, batch);
  return {scored.loss(), scored.accuracy()};
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
