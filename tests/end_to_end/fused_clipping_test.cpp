// PyTorch and Lightning refuse clipping together with a fused optimizer and a scaler. Here it gives the same
// run as the plain optimizer.
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>

#include <torch/torch.h>

#include "mantissa/data/digits.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/convnet.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::fused_clipping_test {
namespace {

template <typename Optimizer>
FitResult train(const std::string& precision, const std::string& algorithm) {
  torch::manual_seed(1);
  Convnet model(ConvnetOptions{.height = 8, .width = 8, .classes = 10});
  ClassificationTask task(
      model.ptr(), [&](const at::Tensor& x) { return model->forward(x); },
      [](torch::nn::Module& module) {
        return OptimizerConfig{std::make_shared<Optimizer>(module.parameters(), AdamWOptions(2e-3))};
      });
  DataLoader loader(load_digits(), {.batch_size = 32, .shuffle = true, .num_samples = 960});
  Trainer trainer({.precision = precision,
                   .device = "cpu",
                   .max_epochs = 2,
                   .accumulate_grad_batches = 2,
                   .gradient_clip_val = 0.1,
                   .gradient_clip_algorithm = algorithm});
  return trainer.fit(task, loader);
}

TEST(FusedClipping, ERR10_EqualsThePlainOptimizersRun) {
  for (const std::string precision : {"32-true", "16-mixed", "bf16-mixed", "O2"}) {
    for (const std::string algorithm : {"norm", "value"}) {
      const FitResult plain = train<AdamW>(precision, algorithm),
                      fused = train<FusedAdamW>(precision, algorithm);
      EXPECT_EQ(fused.skipped_steps, plain.skipped_steps) << precision;
      EXPECT_LT(fused.metrics.at("train_loss"), 1.7) << precision;  // from 2.3
      // The two optimizers order their operations differently. The differences in the last bits grow over 30
      // steps, in 16 bits by whole roundings.
      EXPECT_NEAR(fused.metrics.at("train_loss"), plain.metrics.at("train_loss"), 0.02)
          << precision << algorithm;
    }
  }
}

/// fp16 weights that start at 1, and a scale of 1024, which the fused step divides out.
struct Half {
  Half() {
    mode->convert_module(*net);
    for (at::Tensor& parameter : net->parameters()) parameter.data().fill_(1);
  }
  void backward(double gradient) { mode->backward((net->weight.to(at::kFloat) * gradient).sum()); }
  float weight() { return net->weight.item<float>(); }
  std::unique_ptr<Precision> mode = make_precision("16-true", at::kCPU, {.loss_scale = "1024"});
  torch::nn::Linear net{1, 1};
  FusedSGD optimizer{net->parameters(), SGDOptions(1.0)};
};

TEST(FusedClipping, AStepThatIsDroppedAfterClippingIsForgotten) {
  Half half;
  half.backward(0.25);
  half.mode->clip_gradients(half.optimizer, 0.125);
  half.optimizer.zero_grad();
  half.backward(1e6);  // overflows
  EXPECT_TRUE(half.mode->optimizer_step(half.optimizer).skipped());
  EXPECT_EQ(half.weight(), 1);
  half.optimizer.zero_grad();
  half.backward(0.25);
  half.mode->clip_gradients(half.optimizer, 0.125);
  EXPECT_THROW(
      half.mode->optimizer_step(half.optimizer, []() -> at::Tensor { throw std::runtime_error("loss"); }),
      std::runtime_error);
  EXPECT_FALSE(half.mode->optimizer_step(half.optimizer).skipped());
  EXPECT_EQ(half.weight(), 0.875) << "these gradients were clipped, whatever failed since";
}

TEST(FusedClipping, AnOverflowIsNamedAlsoAfterClippingByValue) {
  Half half;
  half.backward(1e6);
  half.mode->clip_gradients(half.optimizer, 0.125, GradientClipAlgorithm::kValue);
  const StepResult result = half.mode->optimizer_step(half.optimizer);
  EXPECT_TRUE(result.skipped());
  EXPECT_EQ(result.first_nonfinite_parameter(), "weight");
}

TEST(FusedClipping, SmallFp16GradientsSurviveBesideFloat32BatchNorm) {
  torch::nn::Sequential net(torch::nn::BatchNorm1d(1));
  net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
  const auto mode = make_precision("16-true", at::kCPU, {.loss_scale = "65536", .keep_batchnorm_fp32 = true});
  mode->convert_module(*net);
  const at::Tensor weight = net->parameters().back();
  weight.data().fill_(1);
  FusedSGD optimizer(net->parameters(), SGDOptions(0x1p24));
  mode->backward((weight.to(at::kFloat) * 0x1p-28).sum() + net->parameters().front().sum() * 0);
  mode->unscale_gradients(optimizer);  // as the Trainer does before its hook
  EXPECT_FALSE(mode->optimizer_step(optimizer).skipped());
  EXPECT_EQ(weight.item<float>(), 0.9375);
}

}  // namespace
}  // namespace mantissa::fused_clipping_test
