// The cost of preparing for trace_nonfinite(): a training step that takes a ReplayPoint first, compared with
// one that does not. Both run in turn on one thread, and the weights of the two networks are compared bit for
// bit at the end. The same is measured for a whole Trainer with trace_nonfinite, which also keeps the batches
// and reads the loss and the size of the gradients. The cost of a trace is reported in steps.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "mantissa/models/registry.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Training {
  Training(const std::string& name, InputKind kind) {
    torch::manual_seed(1);
    ModelInput input{.kind = kind, .height = 8, .width = 8, .classes = 10, .context = 64};
    net = make_model(name, input);
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 1e-3);
    if (kind == InputKind::kImages) {
      batch = at::rand({64, 1, 8, 8});
      targets = at::randint(10, {64}, at::kLong);
    } else {
      batch = at::randint(256, {2, 64}, at::kLong);
      targets = at::randint(256, {2 * 64}, at::kLong);
    }
  }
  at::Tensor loss() {
    return at::cross_entropy_loss(net->forward(batch).reshape({targets.numel(), -1}), targets);
  }
  double step_ms(bool armed) {
    const auto start = Clock::now();
    std::optional<ReplayPoint> point;
    if (armed) point.emplace(*net);
    optimizer->zero_grad();
    loss().backward();
    optimizer->step();
    return ms_since(start);
  }

  std::shared_ptr<TensorModule> net;
  std::unique_ptr<torch::optim::SGD> optimizer;
  at::Tensor batch, targets;
};

bool measure(const std::string& name, InputKind kind, int pairs) {
  Training one(name, kind), other(name, kind);
  for (int i = 0; i < 5; ++i) one.step_ms(false), other.step_ms(true);
  std::vector<double> plain_ms, ratios;
  for (int i = 0; i < pairs; ++i) {
    // Each network runs with and without the ReplayPoint, and each variant comes first and last: neither
    // memory addresses nor warm caches favour one.
    double plain = one.step_ms(false), armed = other.step_ms(true);
    armed += one.step_ms(true);
    plain += other.step_ms(false);
    plain_ms.push_back(plain / 2);
    ratios.push_back(armed / plain);
  }
  std::vector<double> point_ms, trace_ms;
  for (int i = 0; i < 50; ++i) {
    const auto start = Clock::now();
    const ReplayPoint point(*one.net);
    point_ms.push_back(ms_since(start));
  }
  bool found = false;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    found |= trace_nonfinite(*one.net, [&] { return one.loss(); }).has_value();
    trace_ms.push_back(ms_since(start));
  }
  bool equal = !found;
  const auto a = one.net->parameters(), b = other.net->parameters();
  for (size_t i = 0; i < a.size(); ++i) equal = equal && a[i].equal(b[i]);
  const double step = median(plain_ms);
  std::printf(
      "%-11s step %8.3f ms  armed/plain %.4f  (a point alone: %.4f of a step)  trace/step %6.1f  %s\n",
      name.c_str(), step, median(ratios), median(point_ms) / step, median(trace_ms) / step,
      equal ? "weights equal" : "WEIGHTS DIFFER");
  return equal;
}

/// Returns one batch again and again.
class Repeated final : public Loader {
 public:
  Repeated(Batch batch, int64_t count) : batch_(std::move(batch)), count_(count) {}
  void set_epoch(int64_t /*epoch*/) override { next_ = 0; }
  std::optional<Batch> next() override { return next_++ < count_ ? std::optional(batch_) : std::nullopt; }
  int64_t size() const override { return count_; }

 private:
  Batch batch_;
  int64_t count_, next_ = 0;
};

bool measure_trainer(const std::string& name, InputKind kind, int pairs, int64_t batches) {
  Training one(name, kind), other(name, kind);
  const auto fit_ms = [&](Training& of, bool armed) {
    const auto make_optimizer = [](torch::nn::Module& net) {
      return OptimizerConfig{std::make_shared<torch::optim::SGD>(net.parameters(), 1e-3)};
    };
    ClassificationTask task(
        of.net, [&](const at::Tensor& x) { return of.net->forward(x); }, make_optimizer);
    const std::vector<int64_t> shape =
        kind == InputKind::kImages ? std::vector<int64_t>{64} : std::vector<int64_t>{2, 64};
    Repeated train({one.batch, one.targets.view(shape), {}}, batches);
    return Trainer({.device = "cpu", .trace_nonfinite = armed}).fit(task, train).step_ms;
  };
  fit_ms(one, false), fit_ms(other, true);
  std::vector<double> ratios;
  for (int i = 0; i < pairs; ++i) {
    double plain = fit_ms(one, false), armed = fit_ms(other, true);
    armed += fit_ms(one, true);
    plain += fit_ms(other, false);
    ratios.push_back(armed / plain);
  }
  bool equal = true;
  const auto a = one.net->parameters(), b = other.net->parameters();
  for (size_t i = 0; i < a.size(); ++i) equal = equal && a[i].equal(b[i]);
  std::printf("%-11s Trainer with trace_nonfinite/without %.4f  %s\n", name.c_str(), median(ratios),
              equal ? "weights equal" : "WEIGHTS DIFFER");
  return equal;
}

}  // namespace
}  // namespace mantissa

int main() {
  at::set_num_threads(1);
  bool good = mantissa::measure("convnet", mantissa::InputKind::kImages, 200);
  good &= mantissa::measure("resnet-tiny", mantissa::InputKind::kImages, 100);
  good &= mantissa::measure("gpt-tiny", mantissa::InputKind::kTokens, 40);
  good &= mantissa::measure_trainer("convnet", mantissa::InputKind::kImages, 15, 30);
  good &= mantissa::measure_trainer("resnet-tiny", mantissa::InputKind::kImages, 15, 12);
  good &= mantissa::measure_trainer("gpt-tiny", mantissa::InputKind::kTokens, 15, 6);
  return good ? 0 : 1;
}
