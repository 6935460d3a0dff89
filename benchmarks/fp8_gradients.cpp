// Measures what NVFP4's measures do to the gradients of a small GPT. The GPT is trained on a text in 32-true first. Its weights
// then stay, and the gradients of more and more batches are summed, in 32-true and in fp8-mixed with each variant:
//
//   fp8_gradients_bench TEXT [STEPS [BATCHES [SEED]]]
//
// It prints one line of JSON for each variant and each power of 4 batches: the tokens, and the error of the summed gradients of
// the layers that compute in NVFP4, relative to the sums in 32-true.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>

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
constexpr int64_t kBatch = 16;

/// A GPT in a mode, and the sums of its gradients.
struct Contender {
  std::string name;
  std::unique_ptr<Precision> precision;
  Gpt net{kGpt};
  std::map<std::string, at::Tensor> sums;

  void backward(const Batch& batch) {
    net->zero_grad();
    const at::Tensor loss = [&] {
      const Scope forward = precision->forward_context();
      const at::Tensor logits = net->forward(batch.data);
      return at::cross_entropy_loss(logits.reshape({-1, kGpt.vocabulary}), batch.target.reshape({-1}));
    }();
    precision->backward(loss);
  }

  void add_gradients() {
    for (const auto& parameter : net->named_parameters()) {
      const at::Tensor& gradient = parameter->grad();
      at::Tensor& sum = sums[parameter.key()];
      sum = sum.defined() ? sum + gradient : gradient.to(at::kDouble);
    }
  }
};

Contender contender(std::string name, const std::string& mode, const PrecisionOptions& options) {
  Contender made{.name = std::move(name), .precision = make_precision(mode, at::kCPU, options), .sums = {}};
  made.precision->convert_module(*made.net);
  return made;
}

void train(Contender& contender, const TextDataset& text, int64_t steps) {
  AdamW optimizer(contender.net->parameters(), AdamWOptions(2e-3).weight_decay(0.1).betas({0.9, 0.95}));
  contender.precision->setup_optimizer(optimizer);
  WarmupCosineLR schedule(optimizer, {.warmup_steps = steps / 10, .total_steps = steps, .final_factor = 0.1});
  for (int64_t step = 0; step < steps; ++step) {
    contender.backward(text.get_batch(at::randint(text.size(), {kBatch}, at::kLong)));
    contender.precision->clip_gradients(optimizer, 1.0);
    contender.precision->optimizer_step(optimizer);
    schedule.step();
  }
}

/// Returns the error over the weights of the blocks' linear layers.
double error_of(const Contender& contender, const Contender& exact) {
  double error = 0, norm = 0;
  for (const auto& [name, sum] : exact.sums) {
    if (sum.dim() != 2 || name.find("blocks") == std::string::npos) continue;
    error += (contender.sums.at(name) - sum).square().sum().item<double>();
    norm += sum.square().sum().item<double>();
  }
  return std::sqrt(error / norm);
}

void run(const std::string& path, int64_t steps, int64_t batches, uint64_t seed) {
  const TextDataset text(split_text(load_text(path), 0.1).first, kGpt.context);
  torch::manual_seed(seed);
  Contender exact = contender("32-true", "32-true", {});
  train(exact, text, steps);
  std::vector<Contender> variants;
  for (const bool stochastic : {true, false})
    for (const bool hadamard : {true, false})
      variants.push_back(contender(
          std::string(stochastic ? "stochastic" : "nearest") + (hadamard ? "" : ", no Hadamard"), "fp8-mixed",
          {.recipe =
               NVFP4BlockScaling{.stochastic_rounding = stochastic, .random_hadamard_transform = hadamard}}));
  for (Contender& variant : variants) {
    const at::NoGradGuard no_grad;
    auto to = variant.net->parameters(), from = exact.net->parameters();
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  int64_t next = 1;
  for (int64_t done = 1; done <= batches; ++done) {
    const Batch batch = text.get_batch(at::randint(text.size(), {kBatch}, at::kLong));
    exact.backward(batch);
    exact.add_gradients();
    for (Contender& variant : variants) {
      variant.backward(batch);
      variant.add_gradients();
    }
    if (done < next) continue;
    next *= 4;
    for (const Contender& variant : variants)
      std::printf("%s\n", nlohmann::json{{"variant", variant.name},
                                         {"tokens", done * kBatch * kGpt.context},
                                         {"error", error_of(variant, exact)}}
                              .dump()
                              .c_str());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fp8_gradients_bench TEXT [STEPS [BATCHES [SEED]]]\n");
    return 2;
  }
  const auto count = [&](int i, const char* name, int64_t otherwise) {
    return mantissa::count_argument(argc, argv, i, name, otherwise);
  };
  try {
    mantissa::run(argv[1], count(2, "STEPS", 1000), count(3, "BATCHES", 1024),
                  static_cast<uint64_t>(count(4, "SEED", 1)));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
