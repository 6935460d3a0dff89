#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/precision/registry.h"
#include "mantissa/trainer/loop/diary_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::evaluation_run_test {
namespace {

using testing::HasSubstr;

struct Predicts : OneWeight {
  void test_step(const Batch& batch, int64_t) override {
    log("test_x", batch.data.mean());
    was_training |= net->is_training();
  }
  c10::IValue predict_step(const Batch& batch, int64_t) override {
    was_training |= net->is_training();
    return net(batch.data);
  }
  bool was_training = false;
};

TEST(Evaluation, TestsAndPredictsInEveryMode) {
  for (const Mode& mode : modes()) {
    Predicts task;
    task.net->weight.data().fill_(2);
    const auto diary = std::make_shared<Diary>();
    Trainer trainer({.precision = mode.name, .device = "cpu", .callbacks = {diary}});
    ListLoader data = loader_of({1, 2, 3});
    EXPECT_DOUBLE_EQ(trainer.test(task, data).at("test_x"), 2) << mode.name;
    const std::vector<c10::IValue> predictions = trainer.predict(task, data);
    ASSERT_EQ(predictions.size(), 3U);
    EXPECT_EQ(predictions[2].toTensor().item<double>(), 6) << mode.name;
    EXPECT_EQ(predictions[2].toTensor().scalar_type(), at::kFloat) << mode.name;
    EXPECT_FALSE(predictions[2].toTensor().requires_grad());
    EXPECT_TRUE(trainer.predict(task, data, /*return_predictions=*/false).empty());
    EXPECT_FALSE(task.was_training);
    EXPECT_TRUE(task.net->is_training());
    EXPECT_EQ(diary->count("predicted 6"), 2);
    EXPECT_EQ(diary->count("test end"), 1);
  }
}

TEST(Evaluation, LimitsAndRefusals) {
  OneWeight task;
  ListLoader data = loader_of({1, 2, 3}), empty({});
  Trainer trainer({.device = "cpu", .limit_test_batches = 2, .limit_predict_batches = 1});
  EXPECT_DOUBLE_EQ(trainer.test(task, data).at("val_x"), 1.5)
      << "test_step() is validation_step() by default";
  EXPECT_THAT(error_of([&] { trainer.predict(task, data); }), HasSubstr("has no predict_step()"));
  EXPECT_THAT(error_of([&] { trainer.predict(task, empty); }), HasSubstr("no batches"));
  EXPECT_THAT(error_of([&] { trainer.test(task, empty); }), HasSubstr("no batches"));
  Predicts predicts;
  EXPECT_EQ(trainer.predict(predicts, data).size(), 1U);
}

TEST(Evaluation, OnTheCpuABatchIsReadWhenItsTurnComes) {
  struct Counts final : Loader {
    void set_epoch(int64_t) override { read = 0; }
    std::optional<Batch> next() override {
      ++read;
      return Batch{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}};
    }
    int64_t size() const override { return 3; }
    int64_t read = 0;
  } data;
  struct Looks final : OneWeight {
    void validation_step(const Batch&, int64_t) override { reads.push_back(data->read); }
    const Counts* data = nullptr;
    std::vector<int64_t> reads;
  } task;
  task.data = &data;
  Trainer({.device = "cpu"}).validate(task, data);
  EXPECT_EQ(task.reads, (std::vector<int64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace mantissa::evaluation_run_test
