#include "mantissa/trainer/callbacks/precision_monitor.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <utility>
#include <vector>

#include "mantissa/core/device.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::precision_monitor_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::Pair;

/// Has w, whose gradient is the batch, a parameter without a gradient, and one without elements.
struct NetImpl : torch::nn::Module {
  torch::Tensor w = register_parameter("w", torch::zeros({4}));
  torch::Tensor unused = register_parameter("unused", torch::zeros({2}));
  torch::Tensor empty = register_parameter("empty", torch::zeros({0}));
};
TORCH_MODULE(Net);

struct GradientsAreTheBatch : Task {
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    if (fused) return {{std::make_shared<FusedSGD>(net->parameters(), SGDOptions(1e-3))}};
    return {{std::make_shared<torch::optim::SGD>(net->parameters(), 1e-3)}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    if (batch.data.isnan().any().item<bool>()) return {};
    return (net->w * batch.data).sum() + net->empty.sum();
  }
  Net net;
  bool fused = false;
};

Batch batch_of(const std::vector<float>& values) {
  return {torch::tensor(values), torch::zeros({1}, at::kLong), {}};
}

/// A dynamic scale that starts at `first`.
PrecisionOptions scale_of(double first) {
  PrecisionOptions options;
  options.init_scale = first;
  return options;
}

struct Fit {
  std::string precision = "32-true";
  PrecisionOptions precision_options = {};
  std::vector<std::vector<float>> batches;
  PrecisionMonitorOptions options = {.every_n_steps = 1};
  TrainerOptions run = {};
  bool fused = false;

  PrecisionReport report() {
    GradientsAreTheBatch task;
    task.fused = fused;
    return report(task);
  }
  PrecisionReport report(Task& task, const std::filesystem::path& from = {}) {
    const auto monitor = std::make_shared<PrecisionMonitor>(options);
    run.precision = precision;
    run.precision_options = precision_options;
    if (run.device == "auto") run.device = "cpu";
    run.callbacks.insert(run.callbacks.begin(), monitor);
    std::vector<Batch> all;
    for (const auto& values : batches) all.push_back(batch_of(values));
    ListLoader train(all);
    Trainer(run).fit(task, train, nullptr, from);
    return monitor->report().value_or(PrecisionReport{.global_step = -1});
  }
};

MATCHER_P3(SharesAre, zero, underflow, overflow, "") {
  *result_listener << arg.zero << ", " << arg.underflow << ", " << arg.overflow;
  return arg.zero == zero && arg.underflow == underflow && arg.overflow == overflow;
}

TEST(PrecisionMonitor, CountsWhatTheFormatLoses) {
  // Scaled by 1024, the second element is half of fp16's smallest normal number, and the third is that
  // number.
  Fit fit{
      .precision = "16-mixed", .precision_options = scale_of(1024), .batches = {{0, 0x1p-25F, 0x1p-24F, -2}}};
  const PrecisionReport report = fit.report();
  EXPECT_EQ(report.global_step, 1);
  EXPECT_EQ(report.scale, 1024);
  EXPECT_EQ(report.skipped_steps, 0);
  EXPECT_THAT(report.grad_norm, ElementsAre(Pair(0U, 2)));
  EXPECT_THAT(report.gradients, ElementsAre(Pair("w", SharesAre(0.25, 0.5, 0))));
  EXPECT_THAT(report.total, SharesAre(0.25, 0.5, 0));
}

TEST(PrecisionMonitor, ASkippedStepIsReportedWithTheScaleThatItUsed) {
  Fit fit{.precision = "16-mixed",
          .precision_options = scale_of(1024),
          .batches = {{1, 1, 1, 1}, {kInf, 1, -kInf, 0}}};
  const PrecisionReport report = fit.report();
  EXPECT_EQ(report.scale, 1024);
  EXPECT_EQ(report.skipped_steps, 1);
  EXPECT_EQ(report.grad_norm.at(0), kInf);
  EXPECT_THAT(report.total, SharesAre(0.25, 0.25, 0.5));
  // 40000 * 1024 is finite in float32. A layer that computes in fp16 would overflow, but there is no layer
  // here.
  fit.batches = {{4e4F, 1, 1, 1}};
  fit.run.callbacks.clear();
  EXPECT_THAT(fit.report().total, SharesAre(0, 0, 0));
}

TEST(PrecisionMonitor, EveryModeHasItsOwnSmallestNumber) {
  // The elements: below float32's smallest normal number, below fp16's, and equal to fp16's.
  const std::vector<std::vector<float>> batches{{0x1p-130F, 0x1p-15F, 0x1p-14F, 1}};
  for (const auto& mode : modes()) {
    if (mode.traits.frozen_weights || mode.traits.layer_products) continue;  // the task has no linear layer
    PrecisionOptions options;
    const Format compute = mode.traits.compute;
    if (compute == Format::kFloat16) options.loss_scale = "none";
    const PrecisionReport report =
        Fit{.precision = mode.name, .precision_options = options, .batches = batches}.report();
    EXPECT_EQ(report.scale, std::nullopt) << mode.name;
    // fp16 cannot even store the first element.
    const bool narrow = compute == Format::kFloat16, keeps = !mode.traits.weights;
    EXPECT_THAT(report.total, SharesAre(narrow && !keeps ? 0.25 : 0,
                                        narrow                        ? 0.5
                                        : compute == Format::kFloat64 ? 0
                                                                      : 0.25,
                                        0))
        << mode.name;
    EXPECT_THAT(report.gradients, ElementsAre(Key("w"))) << mode.name;
    EXPECT_FLOAT_EQ(static_cast<float>(report.grad_norm.at(0)), 1) << mode.name;
  }
}

// An optimizer that divides fp16 gradients itself loses nothing; dividing them in fp16 loses small ones.
// Master weights hold the gradients of their weights.
TEST(PrecisionMonitor, KnowsWhetherGradientsAreStillScaled) {
  const std::vector<std::vector<float>> batches{{0, 0x1p-20F, 0x1p-14F, 0.5}};
  const double norm = std::sqrt(0.25 + 0x1p-28 + 0x1p-40);
  PrecisionOptions options;
  options.loss_scale = "1024";
  const auto check = [&](const char* mode, bool fused, double underflow) {
    const PrecisionReport report =
        Fit{.precision = mode, .precision_options = options, .batches = batches, .fused = fused}.report();
    EXPECT_EQ(report.scale, 1024) << mode << fused;
    EXPECT_NEAR(report.grad_norm.at(0), norm, 1e-6) << mode << fused;
    EXPECT_THAT(report.gradients, ElementsAre(Pair("w", SharesAre(0.25, underflow, 0)))) << mode << fused;
  };
  check("16-true", /*fused=*/true, 0.25);
  testing::internal::CaptureStderr();
  check("16-true", /*fused=*/false, 0.5);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("divided by the loss scale in fp16"));
  for (const bool fused : {false, true}) {
    check("O2", fused, 0.25);
    check("16-mixed", fused, 0.25);
  }
  options.loss_scale = "2";
  Fit low{.precision = "O2", .precision_options = options, .batches = batches};
  EXPECT_THAT(low.report().total, SharesAre(0.25, 0.5, 0)) << "2^-20 * 2 is too small for fp16";
}

TEST(PrecisionMonitor, LooksAtTheWholeWindowBeforeItIsClipped) {
  Fit fit{.batches = {{3, 0, 0, 0}, {3, 0, 0, 8}},
          .run = {.accumulate_grad_batches = 2, .gradient_clip_val = 0.5}};
  const PrecisionReport report = fit.report();
  EXPECT_EQ(report.grad_norm.at(0), 5) << "(3 + 3) / 2 and 8 / 2";
  EXPECT_THAT(report.total, SharesAre(0.5, 0.5, 0));
}

TEST(PrecisionMonitor, SquaresThatFp16CannotHoldAreNoInf) {
  Fit fit{.precision = "16-true", .batches = {{6e4F, 6e4F, 6e4F, 6e4F}}};
  EXPECT_FLOAT_EQ(static_cast<float>(fit.report().grad_norm.at(0)), 2 * 6e4F);
}

TEST(PrecisionMonitor, SparseGradientsByTheirStoredElements) {
  struct Embeds : Task {
    torch::nn::Module& module() override { return *net; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(net->parameters(), 1.0)}};
    }
    at::Tensor training_step(const Batch&, int64_t) override {
      // Row 1 is used twice: the gradient has one stored row, of 0 and 3 + 1.
      const at::Tensor rows = net->forward(torch::tensor({1, 1}));
      return (rows * torch::tensor({{0.F, 3.F}, {0.F, 1.F}})).sum();
    }
    torch::nn::Embedding net{torch::nn::EmbeddingOptions(8, 2).sparse(true)};
  } task;
  const PrecisionReport report = Fit{.batches = {{1}}}.report(task);
  EXPECT_THAT(report.gradients, ElementsAre(Pair("weight", SharesAre(0.5, 0.5, 0))));
  EXPECT_EQ(report.grad_norm.at(0), 4);
}

TEST(PrecisionMonitor, ParametersOutsideTheModuleAndComplexOnes) {
  struct Outside : GradientsAreTheBatch {
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{net->w, own}, 1e-3)}};
    }
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      return GradientsAreTheBatch::training_step(batch, index) + at::real(own).sum();
    }
    at::Tensor own = torch::ones({1}, torch::dtype(at::kComplexFloat).requires_grad(true));
  } task;
  const PrecisionReport report = Fit{.batches = {{1, 1, 1, 1}}}.report(task);
  EXPECT_THAT(report.gradients, ElementsAre(Pair("optimizer_0/parameter_1", SharesAre(0.5, 0.5, 0)),
                                            Pair("w", SharesAre(0, 0, 0))));
  EXPECT_THAT(report.total, SharesAre(1. / 6, 1. / 6, 0));
}

TEST(PrecisionMonitor, LogsAtItsIntervalAndSaysNothingBetween) {
  const auto recording = std::make_shared<RecordingLogger>();
  Fit fit{.precision = "16-mixed",
          .precision_options = scale_of(4),
          .batches = {{0, 1, 0, 0}, {kInf, 0, 0, 0}, {NAN, 0, 0, 0}, {0, 3, 4, 0}, {1, 0, 0, 0}},
          .options = {.every_n_steps = 2},
          .run = {.loggers = {recording}, .log_every_n_steps = 0}};
  EXPECT_EQ(fit.report().global_step, 4);
  ASSERT_EQ(recording->lines.size(), 4U) << "the epoch's row and the status are the last";
  EXPECT_EQ(recording->lines[0],
            "2: epoch=0 precision/grad_norm=inf precision/overflow/w=0.25 precision/overflow_total=0.25 "
            "precision/scale=4 precision/skipped_steps=1 precision/underflow/w=0.75 "
            "precision/underflow_total=0.75 precision/zero/w=0.75 precision/zero_total=0.75 skipped_steps=1");
  EXPECT_EQ(recording->lines[1],
            "4: epoch=0 precision/grad_norm=5 precision/overflow/w=0 precision/overflow_total=0 "
            "precision/scale=2 precision/skipped_steps=1 precision/underflow/w=0.5 "
            "precision/underflow_total=0.5 precision/zero/w=0.5 precision/zero_total=0.5 skipped_steps=2")
      << "the batch without a loss is a skipped step, too";
}

TEST(PrecisionMonitor, WithoutAnIntervalInTheTrainersRows) {
  const auto recording = std::make_shared<RecordingLogger>();
  Fit fit{.batches = {{1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}},
          .options = {.per_parameter = false},
          .run = {.loggers = {recording}, .log_every_n_steps = 2}};
  EXPECT_EQ(fit.report().global_step, 2);
  EXPECT_THAT(recording->lines[0],
              testing::StartsWith("2: epoch=0 precision/grad_norm=2 precision/overflow_total=0 "
                                  "precision/skipped_steps=0 precision/underflow_total=0.75 "
                                  "precision/zero_total=0.75 skipped_steps=0 train_loss_step="));
  fit.run.loggers.clear();
  fit.run.callbacks.clear();
  EXPECT_EQ(fit.report().global_step, -1) << "and never without loggers";
}

TEST(PrecisionMonitor, SeveralOptimizersOfOneBackwardPass) {
  struct Two : GradientsAreTheBatch {
    bool automatic_optimization() const override { return false; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{net->w}, 1e-3)},
              {std::make_shared<FusedSGD>(std::vector<at::Tensor>{net->unused}, SGDOptions(1e-3))}};
    }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      for (const size_t i : {size_t{0}, size_t{1}}) optimizers(i).zero_grad();
      manual_backward((net->w * batch.data).sum() + 3 * net->unused.sum());
      for (const size_t i : {size_t{0}, size_t{1}}) optimizers(i).step();
      return {};
    }
  } task;
  const auto recording = std::make_shared<RecordingLogger>();
  Fit fit{.precision = "16-mixed",
          .precision_options = scale_of(4),
          .batches = {{kInf, 0, 0, 0}, {0, 2, 0, 0}, {1, 1, 1, 1}},
          .options = {.every_n_steps = 2},
          .run = {.loggers = {recording}, .log_every_n_steps = 0}};
  const PrecisionReport report = fit.report(task);
  EXPECT_EQ(report.global_step, 4) << "of both, after the second batch";
  EXPECT_EQ(report.scale, 2) << "which has moved once, after the first";
  EXPECT_EQ(report.skipped_steps, 1);
  EXPECT_EQ(report.grad_norm.at(0), 2);
  EXPECT_FLOAT_EQ(static_cast<float>(report.grad_norm.at(1)), std::sqrt(18.F));
  EXPECT_THAT(report.gradients,
              ElementsAre(Pair("unused", SharesAre(0, 0, 0)), Pair("w", SharesAre(0.75, 0.75, 0))));
  EXPECT_THAT(report.total, SharesAre(0.5, 0.5, 0));
  EXPECT_THAT(recording->lines, Contains(HasSubstr("precision/grad_norm/0=2 precision/grad_norm/1=4.24")));
}

TEST(PrecisionMonitor, AThrowInTheMiddleLeavesNothingForTheNextFit) {
  struct Throws final : Callback {
    void on_before_optimizer_step(Trainer&, torch::optim::Optimizer&) override {
      if (++calls == 2) throw std::runtime_error("on_before_optimizer_step failed");
    }
    int calls = 0;
  };
  GradientsAreTheBatch task;
  const auto monitor = std::make_shared<PrecisionMonitor>(PrecisionMonitorOptions{.every_n_steps = 1});
  Trainer trainer({.device = "cpu", .callbacks = {monitor, std::make_shared<Throws>()}});
  ListLoader train(std::vector<Batch>{batch_of({1, 1, 1, 1}), batch_of({1, 1, 1, 1})});
  EXPECT_THROW(trainer.fit(task, train), std::runtime_error);
  EXPECT_EQ(monitor->report()->global_step, 1);
  ListLoader none(std::vector<Batch>{batch_of({NAN, 1, 1, 1})});
  GradientsAreTheBatch other;
  trainer.fit(other, none);
  EXPECT_FALSE(monitor->report().has_value());
}

TEST(PrecisionMonitor, OnCudaTheNumbersAreThere) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  Fit fit{.precision = "16-mixed",
          .precision_options = scale_of(1024),
          .batches = {{0, 0x1p-25F, kInf, -2}},
          .run = {.device = "cuda"}};
  const PrecisionReport report = fit.report();
  EXPECT_EQ(report.scale, 1024);
  EXPECT_THAT(report.total, SharesAre(0.25, 0.5, 0.25));
}

TEST(PrecisionMonitor, RefusesAnIntervalBelowOne) {
  EXPECT_THAT(error_of([] { PrecisionMonitor monitor({.every_n_steps = 0}); }), HasSubstr("every_n_steps=0"));
}

class PrecisionMonitorFiles : public InFolder {};

TEST_F(PrecisionMonitorFiles, AResumedRunContinuesItsCountOfSkippedSteps) {
  const auto fit = [&](int64_t max_steps, const std::string& to, const std::filesystem::path& from) {
    GradientsAreTheBatch task;
    Fit fit{.precision = "16-mixed",
            .batches = {{1, 0, 0, 0}, {kInf, 0, 0, 0}, {kInf, 0, 0, 0}, {1, 0, 0, 0}},
            .options = {.every_n_steps = 2}};
    fit.run.max_steps = max_steps;
    fit.run.callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / to})};
    return fit.report(task, from);
  };
  const PrecisionReport whole = fit(-1, "whole", {});
  EXPECT_EQ(whole.skipped_steps, 1) << "the third; the second was reported before";
  EXPECT_EQ(fit(2, "half", {}).global_step, 2);
  const PrecisionReport rest = fit(-1, "rest", folder_ / "half");
  EXPECT_EQ(rest.skipped_steps, 1);
  EXPECT_EQ(rest.scale, whole.scale);
}

TEST(PrecisionMonitor, AModelOfOneNumberIsCountedAndLogged) {
  OneWeight task;
  const auto logger = std::make_shared<RecordingLogger>();
  const auto monitor = std::make_shared<PrecisionMonitor>(PrecisionMonitorOptions{.every_n_steps = 1});
  ListLoader train = loader_of({kInf});
  Trainer({.precision = "16-mixed",
           .device = "cpu",
           .callbacks = {monitor},
           .loggers = {logger},
           .log_every_n_steps = 1})
      .fit(task, train);
  EXPECT_THAT(monitor->report()->total, SharesAre(0, 0, 1));
  EXPECT_THAT(logger->lines.at(0), HasSubstr("precision/overflow_total=1 "));
}

TEST(PrecisionMonitor, ANumberThatIsZeroIsNotOnlySmall) {
  GradientsAreTheBatch task;
  const auto logger = std::make_shared<RecordingLogger>();
  ListLoader train({batch_of({0, 0x1p-130F, 1, 1})});
  Trainer({.device = "cpu",
           .callbacks = {std::make_shared<PrecisionMonitor>(PrecisionMonitorOptions{.every_n_steps = 1})},
           .loggers = {logger},
           .log_every_n_steps = 1})
      .fit(task, train);
  EXPECT_THAT(logger->lines.at(0), HasSubstr(" precision/underflow_total=0.5 "));
  EXPECT_THAT(logger->lines.at(0), HasSubstr(" precision/zero_total=0.25 "));
}

}  // namespace
}  // namespace mantissa::precision_monitor_test
