// Trains a GPT on a text with optimizers whose states have 8 or 4 bits, and with their 32-bit forms. All start from
// the same weights and see the same batches:
//
//   optimizer_training_bench TEXT [STEPS [OPTIMIZER...]]
//
// It prints, for each: the mean training loss of the last tenth of the steps, the loss over the held-out tenth of the
// text, its difference from the 32-bit optimizer's loss in percent, the measured bytes of state for each parameter, and
// the time of a step.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/data/text.h"
#include "mantissa/models/gpt.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/registry.h"

namespace mantissa {
namespace {

constexpr GptOptions kGpt = {.layers = 3, .width = 128, .heads = 4, .context = 64};
constexpr int64_t kBatch = 16;

/// An optimizer, and the one that it is compared with.
struct Contender {
  std::string name, wide;
};
const std::vector<Contender> kContenders = {
    {"adam", "adam"},       {"adam8bit", "adam"},   {"adam4bit", "adam"}, {"adamw", "adamw"},
    {"adamw8bit", "adamw"}, {"adamw4bit", "adamw"}, {"muon", "muon"},     {"muon8bit", "muon"}};

at::Tensor loss_of(GptImpl& net, const Batch& batch) {
  const at::Tensor logits = net.forward(batch.data);
  return at::cross_entropy_loss(logits.reshape({-1, kGpt.vocabulary}), batch.target.reshape({-1}));
}

double held_out_loss(GptImpl& net, const TextDataset& text) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  int64_t batches = 0;
  for (int64_t begin = 0; begin + kBatch <= text.size() && batches < 100; begin += kBatch, ++batches)
    sum += loss_of(net, text.get_batch(at::arange(begin, begin + kBatch))).item<double>();
  return sum / static_cast<double>(batches);
}

int64_t bytes_in(const StateValue& value) {
  if (const auto* const tensor = value.get_if<at::Tensor>()) return static_cast<int64_t>(tensor->nbytes());
  int64_t bytes = 0;
  if (const auto* const dict = value.get_if<StateDict>())
    for (const auto& [name, item] : *dict) bytes += bytes_in(item);
  return bytes;
}

struct Outcome {
  double training_loss = 0, held_out = 0, bytes = 0, step_ms = 0;
};

Outcome train(const std::string& name, const TextDataset& text, const TextDataset& held_out, int64_t steps) {
  torch::manual_seed(1);
  Gpt net(kGpt);
  // Adam adds weight decay to the gradient and Adam8bit and Adam4bit shrink the weight, so these train without it.
  const double weight_decay = name.starts_with("adam") && !name.starts_with("adamw") ? 0 : 0.1;
  const OptimizerSettings settings = {.lr = 2e-3, .beta2 = 0.95, .weight_decay = weight_decay};
  const auto optimizer = make_optimizer(name, *net, settings);
  WarmupCosineLR schedule(*optimizer,
                          {.warmup_steps = steps / 10, .total_steps = steps, .final_factor = 0.1});
  Outcome outcome;
  int64_t parameters = 0, averaged = 0;
  for (const at::Tensor& parameter : net->parameters()) parameters += parameter.numel();
  std::chrono::steady_clock::duration in_steps = {};
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = text.get_batch(at::randint(text.size(), {kBatch}, at::kLong));
    optimizer->zero_grad();
    const at::Tensor loss = loss_of(*net, batch);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    const auto start = std::chrono::steady_clock::now();
    optimizer->step();
    in_steps += std::chrono::steady_clock::now() - start;
    schedule.step();
    if (step < steps - steps / 10) continue;
    outcome.training_loss += loss.item<double>();
    ++averaged;
  }
  outcome.training_loss /= static_cast<double>(averaged);
  outcome.held_out = held_out_loss(*net, held_out);
  outcome.bytes = static_cast<double>(bytes_in(optimizer_state(*optimizer).at("state"))) /
                  static_cast<double>(parameters);
  outcome.step_ms = std::chrono::duration<double, std::milli>(in_steps).count() / static_cast<double>(steps);
  return outcome;
}

/// Returns a relative difference as "+0.64 %", and one that rounds to nothing without a sign.
std::string percent(double difference) {
  std::array<char, 32> text{};
  const double rounded = std::round(difference * 1e4) / 100 + 0.0;  // a sum of -0 and 0 is 0
  std::snprintf(text.data(), text.size(), rounded == 0 ? "%.2f %%" : "%+.2f %%", rounded);
  return text.data();
}

void run(const std::string& path, int64_t steps, const std::vector<std::string>& names) {
  const auto [text, rest] = split_text(load_text(path), 0.1);
  const TextDataset train_text(text, kGpt.context), held_out(rest, kGpt.context, kGpt.context);
  std::printf("%lld steps of %lld x %lld bytes, %d threads, %s\n", static_cast<long long>(steps),
              static_cast<long long>(kBatch), static_cast<long long>(kGpt.context), at::get_num_threads(),
              std::string(tier_name(cpu_tier())).c_str());
  std::printf("| optimizer | training loss | held-out loss | vs 32-bit | state bytes | optimizer step |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  std::map<std::string, double> wide;
  for (const auto& [name, its_wide] : kContenders) {
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) continue;
    const Outcome outcome = train(name, train_text, held_out, steps);
    if (name == its_wide) wide[name] = outcome.held_out;
    const auto reference = wide.find(its_wide);
    // A 32-bit optimizer, or one whose 32-bit form this run leaves out, is compared with nothing.
    const bool is_compared = name != its_wide && reference != wide.end();
    const std::string relative = is_compared ? percent(outcome.held_out / reference->second - 1) : "-";
    std::printf("| %s | %.4f | %.4f | %s | %.3f | %.2f ms |\n", name.c_str(), outcome.training_loss,
                outcome.held_out, relative.c_str(), outcome.bytes, outcome.step_ms);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: optimizer_training_bench TEXT [STEPS [OPTIMIZER...]]\n");
    return 2;
  }
  try {
    mantissa::run(argv[1], argc > 2 ? std::atoll(argv[2]) : 1000, {argv + std::min(argc, 3), argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
