// A packed weight in every mode, under autocast and Mantissa's kernels, in a trace, and in checkpoints.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>

#include <torch/torch.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/keep_in_fp32.h"
#include "mantissa/data/loader.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/optim/ema.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/memory_plan.h"
#include "mantissa/trainer/trainer.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::packed_weights_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A frozen packed layer with a trained adapter of rank 2 beside it.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl() {
    register_module("base", base);
    register_module("down", down);
    register_module("up", up);
    replace_weight(*base, "weight", pack(base->weight));
    base->bias.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) { return base(x) + up(down(x)); }
  torch::nn::Linear base{4, 4}, down{4, 2}, up{2, 4};
};
TORCH_MODULE(Adapted);

/// Trains a net in a hand-written loop; returns the first and the last loss.
std::pair<double, double> train(Precision& mode, Adapted& net) {
  mode.convert_module(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode.setup_optimizer(optimizer);
  ExponentialMovingAverage ema(*net, {.decay = 0.5});
  const at::Tensor x = torch::randn({64, 4}), y = x.flip(1) * 0.5;
  double first = 0, last = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode.forward_context();
      loss = torch::mse_loss(net(mode.convert_input(x)), mode.convert_input(y));
    }
    mode.backward(loss);
    mode.clip_gradients(optimizer, 10.0);
    mode.optimizer_step(optimizer);
    ema.update();
    last = mode.convert_output(loss).item<double>();
    if (step == 0) first = last;
  }
  const auto averaged = ema.average_weights();
  EXPECT_TRUE(is_packed(net->base->weight));
  return {first, last};
}

TEST(PackedWeights, EveryModeButFloat64TrainsBesideThem) {
  for (const Mode& mode : modes()) {
    SCOPED_TRACE(mode.name);
    torch::manual_seed(0);
    Adapted net;
    const PackedDataPtr data = packed_data(net->base->weight);
    PrecisionOptions options;
    if (mode.traits.frozen_weights) options.ignore_modules = {"down", "up"};  // the adapter has to train
    const auto precision = make_precision(mode.name, at::kCPU, options);
    if (mode.traits.weights == Format::kFloat64) {
      EXPECT_THAT(error_of([&] { train(*precision, net); }), AllOf(HasSubstr("Double"), HasSubstr("packed")));
      continue;
    }
    const auto [first, last] = train(*precision, net);
    EXPECT_LT(last, 0.8 * first);
    EXPECT_EQ(packed_data(net->base->weight), data) << "the weight is still the same one";
    EXPECT_FALSE(net->base->weight.requires_grad());
    EXPECT_FALSE(net->base->weight.grad().defined());
  }
}

TEST(PackedWeights, MasterWeightsLeaveThemOut) {
  torch::manual_seed(0);
  Adapted net;
  PrecisionOptions options;
  options.master_weights = true;
  const auto precision = make_precision("bf16-true", at::kCPU, options);
  const auto [first, last] = train(*precision, net);
  EXPECT_LT(last, 0.8 * first);
  EXPECT_EQ(net->base->weight.scalar_type(), at::kBFloat16);
}

TEST(PackedWeights, AutocastOfMantissaComputesWithThem) {
  torch::manual_seed(0);
  torch::nn::Linear layer(16, 16);
  replace_weight(*layer, "weight", pack(layer->weight));
  const at::Tensor x = torch::randn({8, 16}), low = x.to(at::kBFloat16);
  enable_cpu_kernels();
  at::Tensor two, three, kept;
  {
    const Autocast region(at::kCPU);
    two = layer(x);
    three = layer(x.unsqueeze(0));
  }
  keep_in_fp32(*layer);
  {
    const Autocast region(at::kCPU);
    kept = layer(low);
  }
  EXPECT_EQ(rows_of(layer->weight).products, 3);
  EXPECT_EQ(two.scalar_type(), at::kBFloat16);
  EXPECT_EQ(three.scalar_type(), at::kBFloat16);
  const at::Tensor weight = packed_data(layer->weight)->dequantize(at::kBFloat16);
  EXPECT_TRUE(at::equal(two, torch::linear(low, weight, layer->bias.to(at::kBFloat16))));
  EXPECT_EQ(kept.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(kept, torch::linear(low.to(at::kFloat), layer->weight.dequantize(), layer->bias)));
}

TEST(PackedWeights, ATraceNamesTheLayerWhoseProductOverflows) {
  torch::manual_seed(0);
  Adapted net;
  const at::Tensor x = torch::full({2, 4}, 3e38);
  const auto origin = trace_nonfinite(*net, [&] { return net(x).sum(); });
  ASSERT_TRUE(origin.has_value());
  EXPECT_EQ(origin->module, "base") << origin->to_string();
}

/// Loads batches of one number: 1, 2, ...
class Numbers final : public Loader {
 public:
  explicit Numbers(int64_t count) : count_(count) {}
  void set_epoch(int64_t /*epoch*/) override { next_ = 0; }
  std::optional<Batch> next() override {
    if (next_ == count_) return std::nullopt;
    return Batch{torch::full({1, 1}, static_cast<float>(++next_)), torch::zeros({1}, at::kLong), {}};
  }
  int64_t size() const override { return count_; }

 private:
  int64_t count_, next_ = 0;
};

struct Adapts final : Task {
  explicit Adapts(uint64_t seed) {
    torch::manual_seed(seed);
    net = Adapted();
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {OptimizerConfig{std::make_shared<FusedAdamW>(net->parameters(), AdamWOptions(1e-2))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    return net(batch.data.expand({3, 4})).pow(2).sum();
  }
  Adapted net{nullptr};
};

class PackedRuns : public InFolder {
 protected:
  void fit(Adapts& task, const std::string& name, const std::string& from = "") {
    Numbers train(4);
    Trainer(
        {.device = "cpu",
         .max_epochs = 1,
         .callbacks = {std::make_shared<EMAWeightAveraging>(),
                       std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / name,
                                                                                .filename = "step={step}",
                                                                                .save_top_k = -1,
                                                                                .every_n_train_steps = 2})}})
        .fit(task, train, nullptr, from.empty() ? "" : folder_ / from);
  }
};

TEST_F(PackedRuns, ResumeBitForBitFromACheckpoint) {
  Adapts whole(1), rest(2);
  fit(whole, "whole");
  const Checkpoint saved = load_checkpoint(folder_ / "whole" / "step=2");
  EXPECT_EQ(saved.weights.at("base.weight").scalar_type(), at::kChar);
  EXPECT_TRUE(saved.weights.contains("base.weight.scale"));
  fit(rest, "rest", "whole/step=2");
  const auto expected = whole.net->named_parameters();
  for (const auto& item : rest.net->named_parameters()) {
    EXPECT_TRUE(at::equal(mantissa::dequantize(item.value()), mantissa::dequantize(expected[item.key()])))
        << item.key();
  }
}

TEST_F(PackedRuns, APlanCountsTheirBytes) {
  Adapts task(1);
  const MemoryPlan plan = plan_memory(task, *Numbers(1).next(), {.device = "cpu"});
  int64_t bytes = 0;
  for (const at::Tensor& parameter : task.net->parameters())
    bytes += is_packed(parameter) ? 4 * 4 + 4 * 4 : static_cast<int64_t>(parameter.nbytes());
  EXPECT_EQ(plan.weights, bytes);
}

}  // namespace
}  // namespace mantissa::packed_weights_test
