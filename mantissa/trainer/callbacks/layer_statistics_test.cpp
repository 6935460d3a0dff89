// Tests of PrecisionMonitor's statistics of FP8 layers.
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/precision_monitor.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::layer_statistics_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::Not;

/// Layer "1" gets the batch as it is, and its output has the gradient 1. Nothing is learned.
struct Layers : Task {
  Layers() {
    const at::NoGradGuard no_grad;
    for (const auto& entry : net->named_parameters()) entry.value().zero_();
    for (const char* name : {"0.weight", "1.weight"}) net->named_parameters()[name].copy_(torch::eye(4));
    net->named_parameters()["2.weight"].fill_(1);
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::SGD>(net->parameters(), 0.0)}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    at::Tensor x = net[0]->as<torch::nn::Linear>()->forward(batch.data);
    if (routes_none) x = x.narrow(0, 0, 0);
    for (int i = 0; i < calls; ++i) x = net[1]->as<torch::nn::Linear>()->forward(x);
    return net[2]->as<torch::nn::Linear>()->forward(x).sum();
  }
  void validation_step(const Batch& batch, int64_t) override { log("val_y", net->forward(batch.data).sum()); }

  torch::nn::Sequential net{torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 1)};
  int calls = 1;
  bool routes_none = false;  ///< as to an expert of a mixture
};

std::vector<Batch> batches_of(const std::vector<std::vector<float>>& rows) {
  std::vector<Batch> batches;
  for (const auto& row : rows)
    batches.push_back({torch::tensor(row).view({-1, 4}), torch::zeros({1}, at::kLong), {}});
  return batches;
}

/// Notes, after each backward pass, how many layers are sampled.
struct Sampled final : Callback {
  void on_after_backward(Trainer& trainer) override {
    layers.push_back(trainer.precision().layer_statistics().size());
  }
  std::vector<size_t> layers;
};

struct Fit {
  std::string precision = "fp8-mixed";
  PrecisionOptions precision_options = {};
  std::vector<std::vector<float>> rows;
  PrecisionMonitorOptions options = {.every_n_steps = 1};
  TrainerOptions run = {};
  int calls = 1;
  bool routes_none = false;
  std::filesystem::path from = {};
  std::shared_ptr<RecordingLogger> logger = std::make_shared<RecordingLogger>();
  std::shared_ptr<Sampled> sampled = std::make_shared<Sampled>();

  PrecisionReport report() {
    Layers task;
    task.calls = calls;
    task.routes_none = routes_none;
    const auto monitor = std::make_shared<PrecisionMonitor>(options);
    run.device = "cpu";
    run.precision = precision;
    run.precision_options = precision_options;
    run.callbacks.insert(run.callbacks.begin(), {monitor, sampled});
    if (logger) run.loggers = {logger};
    ListLoader train(batches_of(rows)), val(batches_of({{9, 9, 9, 9}}));
    Trainer(run).fit(task, train, &val, from);
    return monitor->report().value_or(PrecisionReport{.global_step = -1});
  }
};

TEST(PrecisionMonitorLayers, LogsWhatQuantizationDoesToEachTensor) {
  // The first step scales by each tensor itself, and the second one by the amaxes of the first.
  Fit run{.rows = {{448, 0, 0, 0}, {0, 464, 0x1p-11F, 1000}}};
  const PrecisionReport report = run.report();
  ASSERT_THAT(report.layers, ElementsAre(Key("1"))) << "the first and the last layer are not in FP8";
  const LayerStatistics& layer = report.layers.at("1");
  EXPECT_EQ(layer.tensors.at("input"),
            (TensorStatistics{
                .numel = 4, .underflows = 1, .overflows = 1, .amax = 1000, .scale_min = 1, .scale_max = 1}));
  EXPECT_EQ(layer.tensors.at("weight").numel, 16);
  EXPECT_EQ(layer.tensors.at("grad_output").amax, 1);
  EXPECT_THAT(layer.products, IsEmpty());
  EXPECT_THAT(
      run.logger->lines[1],
      AllOf(HasSubstr(" quantization/amax/1/input=1000 "), HasSubstr(" quantization/scale_min/1/input=1 "),
            HasSubstr(" quantization/scale_max/1/weight=448 "),
            HasSubstr(" quantization/underflows/1/input=0.25 "),
            HasSubstr(" quantization/overflows/1/grad_output=0 "),
            HasSubstr(" quantization/overflows/1/input=0.25 "),
            HasSubstr(" quantization/overflows_total=0.0416"), Not(HasSubstr("/error/"))));
}

TEST(PrecisionMonitorLayers, WithoutParametersOnlyTotalsAreLogged) {
  Fit run{.rows = {{1, 1, 1, 1000}},
          .options = {.every_n_steps = 1, .per_parameter = false, .error_every_n_steps = 1}};
  EXPECT_EQ(run.report().layers.size(), 1);
  EXPECT_THAT(run.logger->lines[0],
              AllOf(HasSubstr("quantization/underflows_total=0"), Not(HasSubstr("quantization/amax"))));
}

TEST(PrecisionMonitorLayers, CountsAWindowAndNeitherOtherStepsNorEvaluation) {
  Fit run{.rows = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}, {0, 0, 0, 4}, {5, 5, 5, 5}, {6, 6, 6, 6}},
          .options = {.every_n_steps = 2},
          .run = {.accumulate_grad_batches = 2}};
  run.run.val_check_interval = 1;
  const PrecisionReport report = run.report();
  EXPECT_EQ(report.global_step, 2);
  EXPECT_EQ(report.layers.at("1").tensors.at("input").numel, 8);
  EXPECT_EQ(report.layers.at("1").tensors.at("input").amax, 4);
  EXPECT_EQ(report.layers.at("1").tensors.at("grad_output").amax, 0.5) << "half of the window";
  EXPECT_THAT(run.sampled->layers, ElementsAre(0, 0, 1, 1, 0, 0));
}

TEST(PrecisionMonitorLayers, CountsTheWholeWindowOfAStepThatMakesARow) {
  Fit run{.rows = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}, {4, 4, 4, 4}},
          .options = {},
          .run = {.accumulate_grad_batches = 2, .log_every_n_steps = 2}};
  EXPECT_EQ(run.report().layers.at("1").tensors.at("input").numel, 8);
  EXPECT_THAT(run.sampled->layers, ElementsAre(0, 0, 1, 1));
  run = Fit{.rows = run.rows, .options = {}, .run = {.accumulate_grad_batches = 2, .log_every_n_steps = 1}};
  EXPECT_EQ(run.report().layers.at("1").tensors.at("input").numel, 8);
  run = Fit{.rows = run.rows, .options = {}, .run = {.log_every_n_steps = 1}, .logger = nullptr};
  EXPECT_EQ(run.report().global_step, -1);
  EXPECT_THAT(run.sampled->layers, ElementsAre(0, 0, 0, 0)) << "nobody reads them without a logger";
}

TEST(PrecisionMonitorLayers, ErrorsHaveAnIntervalOfTheirOwn) {
  // After the first step the scale of inputs is 1, and 17 becomes 16. The gradient of the weight has 4 rows with it.
  Fit run{.rows = {{448, 0, 0, 0}, {17, 0, 0, 0}, {1, 0, 0, 0}},
          .options = {.every_n_steps = 3, .error_every_n_steps = 2}};
  run.report();
  ASSERT_GE(run.logger->lines.size(), 2U);
  EXPECT_THAT(run.logger->lines[0],
              AllOf(testing::StartsWith("2:"), HasSubstr("quantization/error/1/output=0.0588"),
                    HasSubstr("quantization/error/1/grad_weight=0.0588"),
                    HasSubstr("quantization/error/1/grad_input=0"), HasSubstr("precision/grad_norm")));
  EXPECT_THAT(run.logger->lines[1], AllOf(testing::StartsWith("3:"), HasSubstr("quantization/amax/1/input=1"),
                                          Not(HasSubstr("/error/"))));
  EXPECT_THAT(run.sampled->layers, ElementsAre(0, 1, 1));
}

TEST(PrecisionMonitorLayers, SeveralCallsInAStepAddUp) {
  Fit run{.rows = {{1, 2, 3, 4}}, .calls = 2};
  EXPECT_EQ(run.report().layers.at("1").tensors.at("input").numel, 8);
}

TEST(PrecisionMonitorLayers, NaNAndInfAreThere) {
  Fit run{.rows = {{kInf, NAN, 1, 1}}, .options = {.every_n_steps = 1, .error_every_n_steps = 1}};
  const LayerStatistics layer = run.report().layers.at("1");
  // The first layer spreads them: inf * 0 is NaN.
  EXPECT_EQ(layer.tensors.at("input").numel, 4);
  EXPECT_TRUE(std::isnan(layer.products.at("output").relative()));
  EXPECT_THAT(run.logger->lines[0], HasSubstr("quantization/error/1/output=nan"));
}

TEST(PrecisionMonitorLayers, AnEmptyInputLeavesOnlyTheWeight) {
  Fit run{
      .rows = {{1, 2, 3, 4}}, .options = {.every_n_steps = 1, .error_every_n_steps = 1}, .routes_none = true};
  const LayerStatistics layer = run.report().layers.at("1");
  EXPECT_THAT(layer.tensors, ElementsAre(Key("weight")));
  EXPECT_EQ(layer.products.count("output"), 0);
}

TEST(PrecisionMonitorLayers, ATensorOfZerosHasNoScale) {
  Fit run{.precision_options = {.recipe = NVFP4BlockScaling{}}, .rows = {{0, 0, 0, 0}}};
  EXPECT_EQ(run.report().layers.at("1").tensors.at("input").scale_min, std::nullopt);
  EXPECT_THAT(run.logger->lines[0],
              AllOf(HasSubstr("/amax/1/input=0 "), HasSubstr("/scale_min/1/weight="),
                    Not(HasSubstr("/scale_min/1/input")), Not(HasSubstr("/scale_max/1/input"))));
}

TEST(PrecisionMonitorLayers, IgnoredLayersAndOtherModesHaveNone) {
  Fit ignoring{.precision_options = {.ignore_modules = {"1"}, .fp8_first_and_last = true},
               .rows = {{1, 2, 3, 4}}};
  EXPECT_THAT(ignoring.report().layers, ElementsAre(Key("0"), Key("2")));
  Fit other{.precision = "bf16-mixed", .rows = {{1, 2, 3, 4}}};
  EXPECT_THAT(other.report().layers, IsEmpty());
  EXPECT_THAT(other.logger->lines, Not(Contains(HasSubstr("quantization/"))));
}

TEST(PrecisionMonitorLayers, RefusesAnIntervalBelowOne) {
  EXPECT_THAT(error_of([] { PrecisionMonitor monitor({.error_every_n_steps = 0}); }),
              HasSubstr("error_every_n_steps=0"));
}

class PrecisionMonitorLayersFiles : public InFolder {};

TEST_F(PrecisionMonitorLayersFiles, AResumedRunLogsWhatTheWholeRunLogs) {
  const auto fit = [&](int64_t max_steps, const std::string& to, const std::filesystem::path& from) {
    Fit run{.precision_options = {.recipe = NVFP4BlockScaling{}},
            .rows = {{1, 2, 3, 4}, {5, 6, 7, 0.1F}, {9, 1, 0.2F, 3}},
            .options = {.every_n_steps = 1, .error_every_n_steps = 1},
            .from = from};
    run.run.max_steps = max_steps;
    run.run.callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / to})};
    run.report();
    std::vector<std::string> rows;
    for (const std::string& line : run.logger->lines)
      if (line.find("quantization/error/1/grad_weight") != std::string::npos) rows.push_back(line);
    return rows;
  };
  const auto whole = fit(-1, "whole", {});
  ASSERT_EQ(whole.size(), 3);
  fit(1, "first", {});
  EXPECT_EQ(fit(-1, "rest", folder_ / "first"), (std::vector<std::string>{whole[1], whole[2]}));
}

/// Fails once at a batch, or leaves one out.
struct Unsteady final : Layers {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    if (index == fails_at) {
      fails_at = -1;
      throw std::runtime_error("training_step failed");
    }
    return index == leaves_out ? at::Tensor() : Layers::training_step(batch, index);
  }
  int64_t fails_at = -1, leaves_out = -1;
};

TEST(PrecisionMonitorLayers, SamplingEndsWithAStepThatHasNoLoss) {
  Unsteady task;
  task.leaves_out = 1;
  const auto sampled = std::make_shared<Sampled>();
  ListLoader train(batches_of({{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}}));
  Trainer({.precision = "fp8-mixed",
           .device = "cpu",
           .callbacks = {std::make_shared<PrecisionMonitor>(PrecisionMonitorOptions{.every_n_steps = 2}),
                         sampled}})
      .fit(task, train);
  EXPECT_THAT(sampled->layers, ElementsAre(0, 0)) << "after the first and the third step";
}

TEST(PrecisionMonitorLayers, AFitAfterOneThatFailedSamplesItsOwnSteps) {
  for (const int64_t interval : {1, 2}) {
    Unsteady task;
    task.fails_at = interval - 1;  // in the first step that is sampled
    const auto sampled = std::make_shared<Sampled>();
    ListLoader train(batches_of({{1, 1, 1, 1}, {2, 2, 2, 2}}));
    Trainer trainer(
        {.precision = "fp8-mixed",
         .device = "cpu",
         .callbacks = {std::make_shared<PrecisionMonitor>(PrecisionMonitorOptions{.every_n_steps = interval}),
                       sampled}});
    EXPECT_THROW(trainer.fit(task, train), std::runtime_error);
    sampled->layers.clear();
    trainer.fit(task, train);
    EXPECT_THAT(sampled->layers, ElementsAre(interval == 1 ? 1 : 0, 1));
  }
}

TEST(PrecisionMonitorLayers, OneElementHasATotal) {
  Layers task;
  task.net = torch::nn::Sequential(torch::nn::Linear(4, 1), torch::nn::Linear(1, 1), torch::nn::Linear(1, 1));
  task.routes_none = true;  // so that the weight is all that the layer has
  const auto logger = std::make_shared<RecordingLogger>();
  ListLoader train(batches_of({{1, 1, 1, 1}}));
  Trainer({.precision = "fp8-mixed",
           .device = "cpu",
           .callbacks = {std::make_shared<PrecisionMonitor>(PrecisionMonitorOptions{.every_n_steps = 1})},
           .loggers = {logger}})
      .fit(task, train);
  EXPECT_THAT(logger->lines.at(0), HasSubstr("quantization/overflows_total=0"));
}

}  // namespace
}  // namespace mantissa::layer_statistics_test
