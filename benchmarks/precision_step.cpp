// A training step in each 16-bit mode against the same step in 32-true: both in turn, A B A B ..., and the
// median of the ratios, so that the machine's drift hits both alike. Beside them the mode with libtorch's own
// CPU kernels (`stock`). Before a time counts, both models have learnt the same from the same batches.
// MANTISSA_MAX_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 makes a
// larger CPU an ordinary one; --benchmark_filter=gpt-256 picks, --benchmark_out=FILE writes JSON.
#include <benchmark/benchmark.h>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/utils.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/overrides.h"
#include "mantissa/models/gpt.h"
#include "mantissa/models/resnet.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/precision/registry.h"

namespace mantissa {
namespace {

struct Data {
  at::Tensor batch, targets;
};

/// A model that is trained on one batch, by hand, as the Trainer does it.
class Training {
 public:
  Training(std::shared_ptr<TensorModule> net, const std::string& mode, Data data)
      : net_(std::move(net)), precision_(make_precision(mode, at::kCPU)), data_(std::move(data)) {
    precision_->convert_module(*net_);
    optimizer_ = std::make_unique<FusedAdamW>(net_->parameters(), AdamWOptions(1e-3));
    precision_->setup_optimizer(*optimizer_);
  }

  double step() {
    at::Tensor loss;
    optimizer_->zero_grad();
    {
      const Scope forward = precision_->forward_context();
      const at::Tensor y = net_->forward(precision_->convert_input(data_.batch));
      loss = at::cross_entropy_loss(y.reshape({data_.targets.numel(), -1}), data_.targets);
    }
    precision_->backward(precision_->pre_backward(loss));
    precision_->unscale_gradients(*optimizer_);
    if (!precision_->optimizer_step(*optimizer_).skipped) ++steps_;
    return loss.item<double>();
  }

  /// The loss after a number of steps; those that looked for the loss scale are skipped and do not count.
  double loss_after(int64_t steps) {
    double loss = 0;
    while (steps_ < steps) loss = step();
    return loss;
  }

 private:
  std::shared_ptr<TensorModule> net_;
  std::unique_ptr<Precision> precision_;
  Data data_;
  std::unique_ptr<FusedAdamW> optimizer_;
  int64_t steps_ = 0;
};

struct Case {
  std::string name;
  std::shared_ptr<TensorModule> (*make)();
  Data (*data)();
};

std::shared_ptr<TensorModule> gpt(int64_t width) {
  GptOptions options;
  options.width = width;
  options.heads = width / 64;
  return std::make_shared<GptImpl>(options);
}

Data tokens() {
  return {at::randint(256, {4, 128}, at::kLong), at::randint(256, {int64_t{4} * 128}, at::kLong)};
}

std::shared_ptr<TensorModule> resnet() {
  ResnetOptions options;
  options.channels = 3;
  options.classes = 10;
  return std::make_shared<ResnetImpl>(options);
}

Data images() { return {at::rand({32, 3, 32, 32}), at::randint(10, {32}, at::kLong)}; }

/// The model's weights stay as they are: libtorch's convolution follows its input.
Data images_channels_last() {
  Data data = images();
  data.batch = data.batch.contiguous(at::MemoryFormat::ChannelsLast);
  return data;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> cases = {{"gpt-256", [] { return gpt(256); }, tokens},
                                          {"gpt-768", [] { return gpt(768); }, tokens},
                                          {"resnet-tiny", resnet, images},
                                          {"resnet-tiny-channels-last", resnet, images_channels_last}};
  return cases;
}

void compare(benchmark::State& state, const Case& each, const std::string& mode) {
  torch::manual_seed(1);
  const Data data = each.data();
  const auto make = [&](const std::string& name) {
    torch::manual_seed(2);
    return Training(each.make(), name, data);
  };
  Training base = make("32-true"), mine = make(mode);
  const double base_loss = base.loss_after(4), my_loss = mine.loss_after(4);
  if (!(std::abs(my_loss - base_loss) < 0.05 * base_loss)) {
    state.SkipWithError("the modes learn different things");
    return;
  }
  const auto run = [](Training& training) { return cost_of([&] { return training.step(); }, 1); };
  std::vector<double> wall, cpu, stock, ms;
  for (auto _ : state) {
    const Cost theirs = run(base), ours = run(mine);
    state.SetIterationTime(ours.wall);
    wall.push_back(ours.wall / theirs.wall);
    cpu.push_back(ours.cpu / theirs.cpu);
    ms.push_back(1e3 * theirs.wall);
    if (stock.empty() || (stock.size() < 3 && stock.back() < 5)) {
      disable_cpu_kernels();
      stock.push_back(run(mine).wall / theirs.wall);
      enable_cpu_kernels();
    }
  }
  state.counters["fp32"] = quantile(wall, 0.5);
  state.counters["fp32_p10"] = quantile(wall, 0.1);
  state.counters["fp32_p90"] = quantile(wall, 0.9);
  state.counters["fp32_cpu"] = quantile(cpu, 0.5);
  state.counters["fp32_ms"] = quantile(ms, 0.5);
  state.counters["stock"] = quantile(stock, 0.5);
}

bool register_all() {
  benchmark::AddCustomContext("tier", tier_name(cpu_tier()));
  benchmark::AddCustomContext("hardware_tier", tier_name(hardware_cpu_tier()));
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  for (const Case& each : cases())
    for (const std::string mode : {"bf16-mixed", "16-mixed", "bf16-true"})
      benchmark::RegisterBenchmark((each.name + "/" + mode).c_str(),
                                   [&each, mode](benchmark::State& state) { compare(state, each, mode); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(15);
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
