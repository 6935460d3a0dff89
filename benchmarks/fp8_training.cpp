// Trains a small GPT on a text with each FP8 recipe, and in bf16-mixed beside them. All runs of a seed start from the
// same weights and see the same batches:
//
//   fp8_training_bench TEXT [STEPS [SEEDS [BATCH_SIZE [RECIPE...]]]]
//
// It prints one line of JSON for each run: the recipe, the seed, the loss over the held-out tenth of the text, the time of
// a step, and the mean training loss of each 20 steps. fp8_training.py makes the table and the figure from them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include "benchmarks/count_argument_internal.h"
#include "mantissa/data/text.h"
#include "mantissa/models/gpt.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/precision/registry.h"

namespace mantissa {
namespace {

constexpr GptOptions kGpt = {.layers = 4, .width = 128, .heads = 4, .context = 64};
constexpr int64_t kStepsInMean = 20;

/// A run to compare: a recipe, or bf16-mixed without one.
struct Contender {
  std::string name;
  std::optional<Fp8Recipe> recipe;
};

/// All scales stay at 1: a delayed scale only moves on to an amax above 0.
DelayedScaling without_scaling() {
  return {.amax_compute = [](const at::Tensor& history) { return at::zeros({history.size(1)}); }};
}

std::vector<Contender> contenders() {
  return {{"bf16-mixed", std::nullopt},
          {"DelayedScaling", DelayedScaling()},
          {"Float8CurrentScaling", Float8CurrentScaling()},
          {"Float8BlockScaling", Float8BlockScaling()},
          {"MXFP8BlockScaling", MXFP8BlockScaling()},
          {"NVFP4BlockScaling", NVFP4BlockScaling()},
          {"NVFP4BlockScaling, to nearest", NVFP4BlockScaling{.stochastic_rounding = false}},
          {"NVFP4BlockScaling, no Hadamard", NVFP4BlockScaling{.random_hadamard_transform = false}},
          {"no scaling", without_scaling()}};
}

at::Tensor loss_of(const Precision& precision, GptImpl& net, const Batch& batch) {
  const Scope forward = precision.forward_context();
  const at::Tensor logits = net.forward(batch.data);
  return at::cross_entropy_loss(logits.reshape({-1, kGpt.vocabulary}), batch.target.reshape({-1}));
}

double held_out_loss(const Precision& precision, GptImpl& net, const TextDataset& text) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  int64_t batches = 0;
  constexpr int64_t kHeldOut = 16;
  for (int64_t begin = 0; begin + kHeldOut <= text.size(); begin += kHeldOut, ++batches)
    sum += loss_of(precision, net, text.get_batch(at::arange(begin, begin + kHeldOut))).item<double>();
  return sum / static_cast<double>(batches);
}

nlohmann::json train(const Contender& contender, uint64_t seed, const TextDataset& text,
                     const TextDataset& held_out, int64_t steps, int64_t batch_size) {
  const std::unique_ptr<Precision> precision =
      contender.recipe ? make_precision("fp8-mixed", at::kCPU, {.recipe = contender.recipe})
                       : make_precision("bf16-mixed", at::kCPU);
  torch::manual_seed(seed);
  Gpt net(kGpt);
  precision->convert_module(*net);
  AdamW optimizer(net->parameters(), AdamWOptions(2e-3).weight_decay(0.1).betas({0.9, 0.95}));
  precision->setup_optimizer(optimizer);
  WarmupCosineLR schedule(optimizer, {.warmup_steps = steps / 10, .total_steps = steps, .final_factor = 0.1});
  torch::manual_seed(seed + 1000);  // the batches do not depend on what a mode draws before
  std::vector<double> losses;
  double sum = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 1; step <= steps; ++step) {
    const Batch batch = text.get_batch(at::randint(text.size(), {batch_size}, at::kLong));
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(*precision, *net, batch);
    precision->backward(loss);
    precision->clip_gradients(optimizer, 1.0);
    precision->optimizer_step(optimizer);
    schedule.step();
    sum += loss.item<double>();
    if (step % kStepsInMean != 0) continue;
    losses.push_back(std::exchange(sum, 0) / kStepsInMean);
  }
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  return {{"recipe", contender.name},
          {"seed", seed},
          {"steps", steps},
          {"batch_size", batch_size},
          {"held_out", held_out_loss(*precision, *net, held_out)},
          {"step_ms", time.count() / static_cast<double>(steps)},
          {"losses", losses}};
}

void run(const std::string& path, int64_t steps, uint64_t seeds, int64_t batch_size,
         const std::vector<std::string>& names) {
  const auto [text, rest] = split_text(load_text(path), 0.1);
  const TextDataset train_text(text, kGpt.context), held_out(rest, kGpt.context, kGpt.context);
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    for (const Contender& contender : contenders()) {
      if (!names.empty() && std::find(names.begin(), names.end(), contender.name) == names.end()) continue;
      std::printf("%s\n", train(contender, seed, train_text, held_out, steps, batch_size).dump().c_str());
      std::fflush(stdout);
    }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fp8_training_bench TEXT [STEPS [SEEDS [BATCH_SIZE [RECIPE...]]]]\n");
    return 2;
  }
  const auto count = [&](int i, const char* name, int64_t otherwise) {
    return mantissa::count_argument(argc, argv, i, name, otherwise);
  };
  try {
    mantissa::run(argv[1], count(2, "STEPS", 1000), count(3, "SEEDS", 3), count(4, "BATCH_SIZE", 16),
                  {argv + std::min(argc, 5), argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
