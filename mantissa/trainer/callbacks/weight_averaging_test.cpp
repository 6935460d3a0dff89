#include "mantissa/trainer/callbacks/weight_averaging.h"

#include <cmath>
#include <gtest/gtest.h>
#include <stdexcept>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::weight_averaging_test {
namespace {

/// Gives three batches; the one with the value 100 overflows if the precision scales.
class Three final : public Loader {
 public:
  explicit Three(bool overflow = false) : overflow_(overflow) {}
  void set_epoch(int64_t /*epoch*/) override { at_ = 0; }
  int64_t size() const override { return 3; }
  std::optional<Batch> next() override {
    if (at_ == 3) return std::nullopt;
    const float value = overflow_ && at_ == 1 ? 100 : 1;
    ++at_;
    return Batch{torch::full({1, 1}, value), torch::zeros({1}, at::kLong), {}};
  }

 private:
  bool overflow_;
  int64_t at_ = 3;
};

/// Has a weight that each step lowers by 1.
class OneWeight final : public Task {
 public:
  OneWeight() { net->weight.data().fill_(0); }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::SGD>(net->parameters(), 1.0)}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    trained.push_back(net->weight.item<float>());
    return (net->weight * (batch.data.max().item<float>() > 50 ? HUGE_VALF : 1.0F)).sum();
  }
  void validation_step(const Batch&, int64_t) override {
    validated.push_back(net->weight.item<float>());
    if (throws) throw std::runtime_error("validation");
  }
  torch::nn::Linear net{torch::nn::LinearOptions(1, 1).bias(false)};
  std::vector<float> trained, validated;
  bool throws = false;
};

FitResult fit(OneWeight& task, const std::shared_ptr<EMAWeightAveraging>& average,
              const std::string& precision = "32-true", bool overflow = false) {
  Three train(overflow), val;
  Trainer trainer({.precision = precision,
                   .device = "cpu",
                   .max_epochs = 2,
                   .num_sanity_val_steps = 0,
                   .callbacks = {average}});
  return trainer.fit(task, train, &val);
}

TEST(EMAWeightAveraging, ValidationSeesTheAverage) {
  OneWeight task;
  const auto average = std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.5}});
  fit(task, average);
  EXPECT_EQ(task.trained, (std::vector<float>{0, -1, -2, -3, -4, -5}));
  EXPECT_EQ(task.validated[0], -2.25F);  // -1, then half-way to -2, half-way to -3
  EXPECT_EQ(task.validated.back(), -5.03125F);
  EXPECT_EQ(task.net->weight.item<float>(), -5.03125F) << "after fit()";
  EXPECT_EQ(average->average()->num_updates(), 6);
}

TEST(EMAWeightAveraging, BeginsAndRestsAsConfigured) {
  OneWeight task;
  const auto average = std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{
      .ema = {.decay = 0.5}, .update_every_n_steps = 2, .update_starting_at_step = 4});
  fit(task, average);
  EXPECT_EQ(task.validated[0], -3) << "nothing is averaged yet";
  EXPECT_EQ(task.net->weight.item<float>(), -5) << "-4 after step 4, -6 after step 6";
}

TEST(EMAWeightAveraging, ASkippedStepIsNotAveraged) {
  OneWeight task;
  const auto average = std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.5}});
  EXPECT_EQ(fit(task, average, "16-mixed", /*overflow=*/true).skipped_steps, 2);
  EXPECT_EQ(average->average()->num_updates(), 4);
  EXPECT_EQ(task.net->weight.item<float>(), -3.125F);
}

TEST(EMAWeightAveraging, TrainedWeightsAreThereAfterAnException) {
  OneWeight task;
  task.throws = true;
  const auto average = std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.5}});
  EXPECT_THROW(fit(task, average), std::runtime_error);
  EXPECT_EQ(task.validated[0], -2.25F);
  EXPECT_EQ(task.net->weight.item<float>(), -3);
}

TEST(EMAWeightAveraging, MasterWeightsTrainOnAsWithout) {
  OneWeight plain, averaged;
  Three train, val;
  Trainer({.precision = "bf16-true",
           .precision_options = {.master_weights = true},
           .device = "cpu",
           .max_epochs = 2})
      .fit(plain, train, &val);
  Trainer({.precision = "bf16-true",
           .precision_options = {.master_weights = true},
           .device = "cpu",
           .max_epochs = 2,
           .callbacks = {std::make_shared<EMAWeightAveraging>()}})
      .fit(averaged, train, &val);
  EXPECT_EQ(averaged.trained, plain.trained);
}

TEST(EMAWeightAveraging, RefusesOptionsOutOfRange) {
  EXPECT_THROW(EMAWeightAveraging({.ema = {.decay = 1}}), c10::ValueError);
  EXPECT_THROW(EMAWeightAveraging({.update_every_n_steps = 0}), c10::ValueError);
  EXPECT_THROW(EMAWeightAveraging({.update_starting_at_step = 0}), c10::ValueError);
}

TEST(EMAWeightAveraging, ACheckpointInsideAValidationHasBothWeights) {
  struct Saves final : Callback {
    void on_validation_batch_end(Trainer& trainer, int64_t index) override {
      if (index != 0) return;
      const Checkpoint saved = trainer.checkpoint();
      average = saved.weights.at("weight").item<float>();
      trained = StateReader(saved.state)
                    .at("callbacks")
                    .at("mantissa::EMAWeightAveraging")
                    .at("trained_weights")
                    .at("weight")
                    .to_tensor()
                    .item<float>();
    }
    float average = 0, trained = 0;
  };
  Three train, val;
  OneWeight task;
  const auto average = std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.5}});
  const auto saves = std::make_shared<Saves>();
  Trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {average, saves}}).fit(task, train, &val);
  ASSERT_EQ(task.validated.size(), 3U);
  EXPECT_NE(task.validated[0], -3) << "the average";
  EXPECT_EQ(saves->average, task.validated[0]);
  EXPECT_EQ(saves->trained, -3);
  EXPECT_EQ(task.validated[2], task.validated[0]) << "the validation continues with the average";
}

}  // namespace
}  // namespace mantissa::weight_averaging_test
