// Support for the trainer's tests: a task with known numbers, a loader of given batches, callbacks that
// record.
#pragma once

#include <cmath>
#include <csignal>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

/// Returns the message of the exception that `run` throws, of any kind, or "".
inline std::string what_a_fit_throws(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Loads the given batches.
class ListLoader final : public Loader {
 public:
  explicit ListLoader(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  void set_epoch(int64_t) override { next_ = 0; }
  std::optional<Batch> next() override {
    return next_ < batches_.size() ? std::optional(batches_[next_++]) : std::nullopt;
  }
  int64_t size() const override { return static_cast<int64_t>(batches_.size()); }

 private:
  std::vector<Batch> batches_;
  size_t next_ = 0;
};

inline ListLoader loader_of(std::vector<float> values) {
  std::vector<Batch> batches;
  for (const float value : values)
    batches.push_back({torch::full({1, 1}, value), torch::zeros({1}, at::kLong), {}});
  return ListLoader(std::move(batches));
}

/// Has one weight w and the loss w * x, so that the gradient is x. A negative x leaves the batch out.
class OneWeight : public Task {
 public:
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 1.0);
    auto schedule = std::make_shared<torch::optim::StepLR>(*optimizer, 1, 0.5);
    return {{optimizer, with_schedule ? schedule : nullptr, interval}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    trace += "f";
    const float x = batch.data.item<float>();
    if (throws_at == x) throw std::runtime_error("training_step failed");
    if (x < 0) return {};
    if (raise_at == x) std::raise(SIGINT);
    return (net->weight * batch.data).sum();
  }
  void validation_step(const Batch& batch, int64_t) override {
    trace += "v";
    if (batch.data.numel() == 1 && raise_at == batch.data.item<float>()) std::raise(SIGTERM);
    validated_in_training_mode |= net->is_training();
    validated_with_gradients |= (net->weight * 1).requires_grad();
    log("val_x", batch.data.mean());
  }
  void on_before_zero_grad(torch::optim::Optimizer&) override { trace += "z"; }
  void on_before_backward(const at::Tensor&) override { trace += "b"; }
  void on_after_backward() override {
    trace += "a";
    const at::Tensor gradient = net->weight.grad();  // undefined with master weights
    if (gradient.defined()) after_backward = gradient.item<float>();
  }
  void on_before_optimizer_step(torch::optim::Optimizer&) override {
    trace += "s";
    const at::Tensor gradient = net->weight.grad();
    if (gradient.defined()) before_step = gradient.item<float>();
  }
  double weight() { return net->weight.item<double>(); }

  torch::nn::Linear net{[] {
    torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
    linear->weight.data().fill_(0);
    return linear;
  }()};
  bool with_schedule = false;
  OptimizerConfig::Interval interval = OptimizerConfig::Interval::kStep;
  std::string trace;
  float throws_at = -kInf, raise_at = -kInf, after_backward = 0, before_step = 0;
  bool validated_in_training_mode = false, validated_with_gradients = false;
};

/// Records every batch's report.
struct Recorder final : Callback {
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
    batches.push_back(batch);
    for (const auto& group : trainer.optimizer()->param_groups()) rate = group.options().get_lr();
  }
  void on_fit_end(Trainer&, const FitResult&) override { ended = true; }
  void on_exception(Trainer& /*trainer*/, const std::exception_ptr& /*exception*/) override { failed = true; }
  std::vector<TrainBatch> batches;
  double rate = 0;
  bool ended = false, failed = false;
};

inline double without_sign_of_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

/// Records every call as a line.
class RecordingLogger final : public Logger {
 public:
  std::string name() const override { return "recording"; }
  void log_metrics(MetricValues metrics, int64_t step) override {
    if (fails) throw std::runtime_error("no room");
    std::string line = std::to_string(step) + ":";
    for (const auto& [name, value] : metrics)
      line += fmt::format(" {}={}", name, without_sign_of_nan(value.read()));
    lines.push_back(line);
  }
  void log_hyperparams(const Hyperparameters&) override {}
  void resume_from(int64_t step) override { lines.push_back("resume " + std::to_string(step)); }
  void save() override { lines.emplace_back("save"); }
  void finalize(const std::string& status) override { lines.push_back(status); }

  bool fails = false;
  std::vector<std::string> lines;
};

}  // namespace mantissa
