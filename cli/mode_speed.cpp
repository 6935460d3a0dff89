#include "cli/mode_speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include "mantissa/models/gpt.h"
#include "mantissa/models/resnet.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/precision/init.h"
#include "mantissa/precision/registry.h"

namespace mantissa::cli {
namespace {

struct Example {
  std::shared_ptr<TensorModule> (*make)();
  at::Tensor batch, targets;
};

Example small_gpt() {
  const auto make = []() -> std::shared_ptr<TensorModule> {
    GptOptions options;
    options.layers = 2;
    options.width = 128;
    options.heads = 2;
    return std::make_shared<GptImpl>(options);
  };
  return {make, at::randint(256, {4, 64}, at::kLong), at::randint(256, {int64_t{4} * 64}, at::kLong)};
}

Example small_resnet() {
  const auto make = []() -> std::shared_ptr<TensorModule> {
    ResnetOptions options;
    options.channels = 3;
    options.classes = 10;
    return std::make_shared<ResnetImpl>(options);
  };
  return {make, at::rand({8, 3, 32, 32}), at::randint(10, {8}, at::kLong)};
}

/// The options with which each linear layer of a model computes in the mode's format.
PrecisionOptions with_all_layers(const Mode& mode) {
  PrecisionOptions options;
  if (mode.traits.layer_products == Format::kFloat8E4M3) options.fp8_first_and_last = true;
  return options;
}

/// A model that is trained on one batch, as in a user's own loop.
class Training {
 public:
  Training(const Mode& mode, const Example& example)
      : precision_(make_precision(mode.name, at::kCPU, with_all_layers(mode))),
        batch_(example.batch),
        targets_(example.targets) {
    {
      const ModuleInit scope(*precision_);
      net_ = example.make();
    }
    precision_->convert_module(*net_);
    optimizer_ = std::make_unique<FusedSGD>(net_->parameters(), SGDOptions(1e-3));
    precision_->setup_optimizer(*optimizer_);
  }

  double seconds_of_step() {
    const auto begin = std::chrono::steady_clock::now();
    optimizer_->zero_grad();
    at::Tensor loss;
    {
      const Scope forward = precision_->forward_context();
      const at::Tensor y = net_->forward(precision_->convert_input(batch_));
      loss = at::cross_entropy_loss(y.reshape({targets_.numel(), -1}), targets_);
    }
    precision_->backward(loss);
    precision_->optimizer_step(*optimizer_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  std::unique_ptr<Precision> precision_;
  std::shared_ptr<TensorModule> net_;
  at::Tensor batch_, targets_;
  std::unique_ptr<FusedSGD> optimizer_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Returns the time of a step in `mode` divided by that of a step in 32-true. Both are measured in turn, and
/// the median of the ratios counts, so that a busy machine slows both sides.
double over_32_true(const Mode& mode, const Example& example) {
  constexpr double kMaxSeconds = 0.3;
  constexpr size_t kRounds = 9;
  Training base(find_mode("32-true"), example), measured(mode, example);
  base.seconds_of_step(), measured.seconds_of_step();  // warm up
  std::vector<double> ratios;
  double spent = 0;
  while (ratios.size() < kRounds && spent < kMaxSeconds) {
    const double base_seconds = base.seconds_of_step(), seconds = measured.seconds_of_step();
    ratios.push_back(seconds / base_seconds);
    spent += base_seconds + seconds;
  }
  return median(ratios);
}

}  // namespace

std::vector<ModeSpeed> measure_modes() {
  const Example gpt = small_gpt(), resnet = small_resnet();
  std::vector<ModeSpeed> speeds;
  for (const Mode& mode : modes())
    if (!mode.historical && mode.traits != PrecisionTraits())  // the traits of 32-true itself
      speeds.push_back({mode.name, over_32_true(mode, gpt), over_32_true(mode, resnet)});
  return speeds;
}

}  // namespace mantissa::cli
