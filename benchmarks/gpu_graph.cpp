// Compares a whole 16-mixed step that is captured and replayed with the same step taken eagerly.
//
//   gpu_graph JOB.json   prints a line of JSON
//
// Job:    "device"; "model" {"layers", "width", "heads", "context", "vocabulary"} of a GPT; "batch"; "steps";
//         "growth_interval" of the scaler; "overflows" {"<step>": "inf" or "nan"}: steps whose loss is
//         multiplied by it.
// Result: "skipped" [steps]: the steps that changed no weight; "scale" [steps]; "equal_scale",
//         "equal_weights": whether scales and weights were bitwise equal after every step; "differs_at": the
//         first step at which they differ, else null; "eager_ms", "replay_ms": median time per step over five
//         blocks of `steps` steps, with nondeterministic algorithms allowed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <c10/core/DeviceGuard.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "benchmarks/gpt_options_internal.h"
#include "benchmarks/graphed.h"
#include "benchmarks/job_file_internal.h"
#include "mantissa/amp/autocast.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/optim/fused_adam.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

/// PyTorch's AMP recipe as a hand-written loop. It reads nothing from the device.
class Training {
 public:
  explicit Training(const Json& job)
      : device_(job["device"].get<std::string>()),
        net_(gpt_options(job["model"])),
        scaler_(device_, {.growth_interval = job["growth_interval"]}) {
    net_->to(device_);
    optimizer_ = std::make_unique<FusedAdamW>(net_->parameters(), AdamWOptions(1e-3));
    const int64_t vocabulary = job["model"]["vocabulary"], context = job["model"]["context"];
    tokens_ = at::randint(vocabulary, {job["batch"].get<int64_t>(), context}, at::kLong).to(device_);
    factor_ = at::ones({}, device_);
  }

  void step() {
    optimizer_->zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(device_.type(), {.dtype = at::kHalf});
      const at::Tensor logits = net_->forward(tokens_);
      loss = at::cross_entropy_loss(logits.flatten(0, 1), tokens_.flatten()) * factor_;
    }
    scaler_.scale(loss).backward();
    scaler_.clip_grad_norm_(*optimizer_, 1.0);
    scaler_.step(*optimizer_);
    scaler_.update();
  }

  /// Sets the factor of the next losses. It is written in place, so that replays see it.
  void multiply_loss_by(double factor) { factor_.fill_(factor); }
  double scale() const { return scaler_.get_scale(); }

  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> weights;
    for (const at::Tensor& p : net_->parameters()) weights.push_back(p.detach().clone());
    return weights;
  }

 private:
  at::Device device_;
  Gpt net_;
  GradScaler scaler_;
  std::unique_ptr<FusedAdamW> optimizer_;
  at::Tensor tokens_, factor_;
};

bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& x, const auto& y) { return at::equal(x, y); });
}

template <typename Step>
double ms_of(at::Device device, int64_t steps, const Step& step) {
  const auto wait = [&] {
    if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
  };
  std::vector<double> blocks;
  for (int block = 0; block < 5; ++block) {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) step();
    wait();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    blocks.push_back(took.count() / static_cast<double>(steps));
  }
  std::nth_element(blocks.begin(), blocks.begin() + 2, blocks.end());
  return blocks[2];
}

constexpr int kWarmUps = 3;

/// Deterministic algorithms are needed for equal bits: by default attention's fused kernels, and others of
/// libtorch, add gradients in an order that varies between runs.
void use_algorithms(bool deterministic) {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
  context.setSDPUseFlash(!deterministic);
  context.setSDPUseMemEfficient(!deterministic);
  context.setSDPUseCuDNN(!deterministic);
}

void compare(const Json& job, at::Device device, Json& result) {
  use_algorithms(/*deterministic=*/true);
  torch::manual_seed(1);
  Training eager(job);
  torch::manual_seed(1);
  Training captured(job);
  for (int i = 0; i < kWarmUps; ++i) eager.step();
  Graphed graph(
      device, [&] { captured.step(); }, kWarmUps);

  const int64_t steps = job["steps"];
  result = {
      {"skipped", Json::array()}, {"scale", Json::array()}, {"equal_scale", true}, {"differs_at", nullptr}};
  std::vector<at::Tensor> before = captured.weights();
  result["equal_weights"] = are_equal(eager.weights(), before);
  for (int64_t step = 0; step < steps; ++step) {
    const auto overflow = job["overflows"].find(std::to_string(step));
    const double factor = overflow == job["overflows"].end()      ? 1
                          : overflow->get<std::string>() == "inf" ? HUGE_VAL
                                                                  : NAN;
    eager.multiply_loss_by(factor);
    captured.multiply_loss_by(factor);
    eager.step();
    graph.replay();
    const std::vector<at::Tensor> weights = captured.weights();
    if (are_equal(weights, before)) result["skipped"].push_back(step);
    result["scale"].push_back(captured.scale());
    const bool equal_scale = captured.scale() == eager.scale(),
               equal_weights = are_equal(weights, eager.weights());
    if (!(equal_scale && equal_weights) && result["differs_at"].is_null()) result["differs_at"] = step;
    if (!equal_scale) result["equal_scale"] = false;
    if (!equal_weights) result["equal_weights"] = false;
    before = weights;
  }
}

void time(const Json& job, at::Device device, Json& result) {
  use_algorithms(/*deterministic=*/false);
  const int64_t steps = job["steps"];
  Json without_growth = job;
  without_growth["growth_interval"] = 1'000'000;
  Training eager(without_growth), captured(without_growth);
  for (int i = 0; i < kWarmUps; ++i) eager.step();
  Graphed graph(
      device, [&] { captured.step(); }, kWarmUps);
  result["eager_ms"] = ms_of(device, steps, [&] { eager.step(); });
  result["replay_ms"] = ms_of(device, steps, [&] { graph.replay(); });
}

Json run(const Json& job) {
  const at::Device device(job["device"].get<std::string>());
  const c10::DeviceGuard device_is_current(device);
  Json result;
  compare(job, device, result);
  time(job, device, result);
  return result;
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (const int status = mantissa::answer_usage(argc, argv, "gpu_graph JOB.json"); status >= 0) return status;
  std::puts(mantissa::run(mantissa::read_job(argv[1])).dump().c_str());
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "gpu_graph: %s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_graph: %s\n", error.what());
  return 1;
}
