// Fine-tunes a GPT that does not fit into memory as float32: 4-bit weights with double quantization, and LoRA. The
// weights are random. The model is built block by block, so at most one block exists in float32. The program
// prints the step times, and the peak of its memory (VmHWM) over the sum of the parts that have to exist at the same
// time.
//
//     large_gpt_bench [LAYERS WIDTH CONTEXT STEPS]       default: 26 3072 128 3, which is 3 billion parameters
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include "benchmarks/process_memory_internal.h"
#include "mantissa/lora/lora_model.h"
#include "mantissa/models/gpt.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/precision/init.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// The models of mantissa/models make all their blocks at once. This one gets them one by one.
class LargeGpt final : public torch::nn::Module {
 public:
  explicit LargeGpt(const GptOptions& options) {
    tokens_ = register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width));
    positions_ = register_module("positions", torch::nn::Embedding(options.context, options.width));
    register_module("blocks", blocks_);
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
    head_ = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)));
  }

  void add(const GptBlock& block) { blocks_->push_back(block); }

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = tokens_(tokens) + positions_(at::arange(tokens.size(1), tokens.options()));
    for (const auto& block : *blocks_) x = block->as<GptBlock>()->forward(x);
    return head_(norm_(x));
  }

 private:
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};

struct Sizes {
  int64_t layers = 26, width = 3072, context = 128, steps = 3;
};

/// The number of weights, and the bytes that they take.
struct Weights {
  int64_t count = 0, bytes = 0;
};

Weights weights_of(const torch::nn::Module& module) {
  Weights all;
  for (const at::Tensor& parameter : module.parameters()) {
    all.count += parameter.numel();
    all.bytes += is_packed(parameter) ? static_cast<int64_t>(packed_data(parameter)->nbytes())
                                      : static_cast<int64_t>(parameter.nbytes());
  }
  return all;
}

std::shared_ptr<LargeGpt> build(const GptOptions& options, Precision& precision) {
  const auto model = init_module(precision, at::kCPU, [&] { return std::make_shared<LargeGpt>(options); });
  for (int64_t i = 0; i < options.layers; ++i) {
    model->add(init_module(precision, at::kCPU, [&] { return GptBlock(options); }));
    malloc_trim(0);  // the block's float32 weights are gone
  }
  precision.convert_module(*model);
  return model;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int run(const Sizes& sizes) {
  torch::manual_seed(1);
  GptOptions options;
  options.layers = sizes.layers;
  options.width = sizes.width;
  options.heads = sizes.width / 128;
  options.context = sizes.context;
  options.vocabulary = 32000;
  const auto precision = make_precision("nf4-dq", at::kCPU);
  const Scope running = precision->run_context();

  const int64_t at_start = resident_bytes();
  auto begin = std::chrono::steady_clock::now();
  const auto model = build(options, *precision);
  const Weights base = weights_of(*model);
  std::printf("%.3f billion weights in %lld MiB (float32: %lld MiB), built in %.0f s\n",
              static_cast<double>(base.count) / 1e9, static_cast<long long>(base.bytes / kMiB),
              static_cast<long long>(base.count * 4 / kMiB), seconds_since(begin));

  const LoraModel lora(
      *model, {.r = 16, .lora_alpha = 32, .target_modules = {"qkv", "projection", "expand", "contract"}});
  std::vector<at::Tensor> trained;
  int64_t trained_bytes = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    if (!parameter.requires_grad()) continue;
    trained.push_back(parameter);
    trained_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  FusedAdamW optimizer(trained, AdamWOptions(1e-3));
  precision->setup_optimizer(optimizer);
  const at::Tensor tokens = at::randint(options.vocabulary, {1, sizes.context}, at::kLong);
  const at::Tensor targets = at::randint(options.vocabulary, {sizes.context}, at::kLong);

  int64_t activations = 0;
  double first = 0, last = 0;
  for (int64_t step = 0; step < sizes.steps; ++step) {
    begin = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const int64_t before = resident_bytes();
    at::Tensor loss;
    {
      const Scope forward = precision->forward_context();
      const at::Tensor y = model->forward(tokens);
      loss = at::cross_entropy_loss(y.reshape({-1, options.vocabulary}).to(at::kFloat), targets);
    }
    activations = std::max(activations, resident_bytes() - before);
    precision->backward(loss);
    TORCH_CHECK(!precision->optimizer_step(optimizer).skipped(), "large_gpt: step ", step, " was skipped");
    last = loss.item<double>();
    TORCH_CHECK(std::isfinite(last), "large_gpt: the loss of step ", step, " is ", last);
    if (step == 0) first = last;
    std::printf("step %lld: %.1f s, loss %.4f\n", static_cast<long long>(step), seconds_since(begin), last);
    std::fflush(stdout);
  }
  TORCH_CHECK(sizes.steps < 2 || last < first, "large_gpt: the loss did not fall on its one batch: ", first,
              " and ", last);

  // A trained weight has a gradient and two states of its size.
  const int64_t parts = at_start + base.bytes + 4 * trained_bytes + activations;
  const int64_t peak = peak_resident_bytes();
  std::printf(
      "parts: process %lld, weights %lld, adapters with gradients and states %lld, activations %lld; "
      "sum %lld MiB\npeak: %lld MiB, %.2f of the sum\n",
      static_cast<long long>(at_start / kMiB), static_cast<long long>(base.bytes / kMiB),
      static_cast<long long>(4 * trained_bytes / kMiB), static_cast<long long>(activations / kMiB),
      static_cast<long long>(parts / kMiB), static_cast<long long>(peak / kMiB),
      static_cast<double>(peak) / static_cast<double>(parts));
  return 0;
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  mantissa::Sizes sizes;
  if (argc == 5)
    sizes = {std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4])};
  else
    TORCH_CHECK(argc == 1, "large_gpt: give LAYERS WIDTH CONTEXT STEPS, or nothing");
  return mantissa::run(sizes);
}
