// The purpose of a loss scale in 16-true: a loss so small that its fp16 gradients are 0 trains nothing
// without a scale, and trains with one. Adam's step does not depend on the size of the gradients, so nothing
// else differs.
#include <gtest/gtest.h>
#include <memory>

#include <torch/torch.h>

#include "mantissa/data/digits.h"
#include "mantissa/data/loader.h"
#include "mantissa/data/text.h"
#include "mantissa/models/convnet.h"
#include "mantissa/models/gpt.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::fp16_gradients_test {
namespace {

constexpr double kTiny = 0x1p-24;

/// Returns the cross-entropy in float32 times kTiny; logs it without the factor.
template <typename Model>
class TinyLoss final : public Task {
 public:
  explicit TinyLoss(Model model) : model_(std::move(model)) {}
  torch::nn::Module& module() override { return *model_; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<FusedAdamW>(model_->parameters(), AdamWOptions(3e-3).eps(1e-16).weight_decay(0),
                                          FusedOptions{.stochastic_rounding = true})}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    const at::Tensor logits = model_->forward(batch.data).to(at::kFloat);
    const at::Tensor loss = torch::cross_entropy_loss(logits.flatten(0, -2), batch.target.flatten());
    log("loss", loss.detach());
    return loss * kTiny;
  }
  void on_before_optimizer_step(torch::optim::Optimizer&) override {
    for (const at::Tensor& parameter : model_->parameters()) {
      zeros_ += parameter.grad().eq(0).sum().template item<int64_t>();
      elements_ += parameter.grad().numel();
    }
  }
  double share_of_zeros() const { return static_cast<double>(zeros_) / static_cast<double>(elements_); }

 private:
  Model model_;
  int64_t zeros_ = 0, elements_ = 0;
};

struct Outcome {
  double first_loss, last_loss, zeros;
};

/// Keeps the loss of the first epoch.
struct FirstEpoch final : Callback {
  void on_epoch_end(Trainer& /*trainer*/, int64_t epoch, int64_t, const Metrics& metrics) override {
    if (epoch == 0) loss = metrics.at("loss");
  }
  double loss = 0;
};

template <typename Model>
Outcome train(const std::function<Model()>& make, Loader& loader, int64_t epochs,
              const std::string& loss_scale) {
  torch::manual_seed(1);
  TinyLoss<Model> task(make());
  const auto first = std::make_shared<FirstEpoch>();
  Trainer trainer({.precision = "16-true",
                   .precision_options = {.loss_scale = loss_scale},
                   .device = "cpu",
                   .max_epochs = epochs,
                   .gradient_clip_val = kTiny,
                   .callbacks = {first}});
  const FitResult result = trainer.fit(task, loader);
  return {first->loss, result.metrics.at("loss"), task.share_of_zeros()};
}

TEST(Fp16Gradients, DigitsTrainWithALossScaleAndNotWithout) {
  DataLoader loader(load_digits(), {.batch_size = 32, .shuffle = true, .num_samples = 640});
  const std::function make = [] { return Convnet(ConvnetOptions{.height = 8, .width = 8, .classes = 10}); };
  const Outcome without = train(make, loader, 4, "none"), with = train(make, loader, 4, "dynamic");
  EXPECT_EQ(without.zeros, 1);
  EXPECT_GT(without.last_loss, 0.99 * without.first_loss);
  EXPECT_LT(with.zeros, 0.5);
  EXPECT_LT(with.last_loss, 0.3 * with.first_loss);
}

TEST(Fp16Gradients, ASmallGptTrainsWithALossScaleAndNotWithout) {
  std::string text;
  while (text.size() < 2000) text += "the quick brown fox jumps over the lazy dog. ";
  const at::Tensor bytes =
      torch::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte).clone();
  DataLoader loader(std::make_shared<TextDataset>(bytes, 16),
                    {.batch_size = 8, .shuffle = true, .num_samples = 80});
  const std::function make = [] {
    return Gpt(GptOptions{.layers = 2, .width = 32, .heads = 2, .context = 16});
  };
  const Outcome without = train(make, loader, 5, "none"), with = train(make, loader, 5, "dynamic");
  EXPECT_GT(without.zeros, 0.99);
  EXPECT_GT(without.last_loss, 0.95 * without.first_loss);
  EXPECT_LT(with.zeros, 0.5);
  EXPECT_LT(with.last_loss, 0.7 * with.first_loss);
}

}  // namespace
}  // namespace mantissa::fp16_gradients_test
