// Tests TrainerOptions::trace_nonfinite: what is worth a warning, and what it says.
#include <cmath>
#include <filesystem>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/host_reads_internal.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::tracer_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Batches final : public Loader {
 public:
  explicit Batches(int64_t count) : count_(count) {}
  void set_epoch(int64_t) override { next_ = 0; }
  std::optional<Batch> next() override {
    if (next_ == count_) return std::nullopt;
    return Batch{torch::full({1, 1}, static_cast<float>(next_++)), torch::zeros({1}, at::kLong), {}};
  }
  int64_t size() const override { return count_; }

 private:
  int64_t count_, next_ = 0;
};

/// Has one weight; a test computes the loss from the layer's output for batch 0, 1, ...
class OneWeight final : public Task {
 public:
  using Loss = std::function<at::Tensor(const at::Tensor& y, int64_t batch)>;
  explicit OneWeight(Loss loss, double rate = 0) : loss_(std::move(loss)), rate_(rate) {
    net->weight.data().fill_(0.5);
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::SGD>(net->parameters(), rate_)}};
  }
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    ++runs;
    return loss_(net(torch::ones_like(batch.data)), index);
  }
  torch::nn::Linear net{torch::nn::LinearOptions(1, 1).bias(false)};
  int runs = 0;

 private:
  Loss loss_;
  double rate_;
};

struct Origins final : Callback {
  void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
    if (batch.origin) causes.push_back(batch.origin->cause);
  }
  std::vector<NonFiniteCause> causes;
};

/// Returns the warnings of the tracing; other parts of the library warn of skipped steps as well.
std::vector<std::string> warnings_of(Task& task, int64_t batches, TrainerOptions options,
                                     const std::filesystem::path& ckpt_path = {}) {
  Warnings warnings;
  options.device = "cpu";
  options.trace_nonfinite = true;
  Batches train(batches);
  Trainer(std::move(options)).fit(task, train, nullptr, ckpt_path);
  std::erase_if(warnings.texts, [](const std::string& text) {
    return !text.starts_with("batch ") && !text.starts_with("trace_nonfinite");
  });
  return warnings.texts;
}

/// Saves the run after its last batch.
struct SaveAtEnd final : Callback {
  explicit SaveAtEnd(std::filesystem::path to) : path(std::move(to)) {}
  void on_train_end(Trainer& trainer) override { save_checkpoint(path, trainer.checkpoint()); }
  std::filesystem::path path;
};

at::Tensor plain(const at::Tensor& y, int64_t /*batch*/) { return y.to(at::kFloat).sum(); }

TEST(Tracer, AScaleThatFindsItselfIsOneLineAndNoFault) {
  OneWeight task(plain);  // at 65536 the gradient of y, in fp16, is inf
  auto origins = std::make_shared<Origins>();
  const auto warnings = warnings_of(task, 4, {.precision = "16-mixed", .callbacks = {origins}});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("batch 0 of epoch 0: the step was skipped"));
  EXPECT_THAT(warnings[0], HasSubstr("since a gradient of aten::"));
  EXPECT_THAT(warnings[0], HasSubstr("at the loss scale 65536 is beyond Half"));
  EXPECT_THAT(warnings[0], Not(HasSubstr("Cure")));
  EXPECT_THAT(origins->causes, ElementsAre(NonFiniteCause::kLossScale));
  EXPECT_EQ(task.runs, 5);
}

TEST(Tracer, OverflowsOfADynamicScaleLeaveTheTracesToFaults) {
  // Two overflows in three steps are far more than kMaxTraces; then comes a fault.
  OneWeight task([](const at::Tensor& y, int64_t batch) {
    const at::Tensor wide = y.to(at::kFloat);
    if (batch == 45) return torch::log(wide - wide - 1).sum();
    return wide.sum() * (batch % 3 == 0 ? 1e-30 : 1e30);
  });
  const auto warnings = warnings_of(task, 46, {.precision = "16-mixed"});
  ASSERT_EQ(warnings.size(), 2);
  EXPECT_THAT(warnings[0], HasSubstr("by itself"));
  EXPECT_THAT(warnings[1], HasSubstr("batch 45 of epoch 0: forward: aten::log"));
}

TEST(Tracer, AScaleBeyondFloat32IsAScaleThatFindsItself) {
  // The scale 3e38 times the loss, or times its derivative in the backward pass, is beyond float32.
  for (const double factor : {1e3, 1e-3}) {
    OneWeight task(
        [=](const at::Tensor& y, int64_t) { return (y.to(at::kFloat) * 1e6).sum() * factor / 1e6; });
    const auto warnings =
        warnings_of(task, 4, {.precision = "16-mixed", .precision_options = {.init_scale = 3e38}});
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_THAT(warnings[0], HasSubstr("at the loss scale 3e+38 is beyond "));
    EXPECT_THAT(warnings[0], Not(HasSubstr("Cure")));
  }
}

TEST(Tracer, ARepeatedFaultIsReportedInOneLine) {
  OneWeight task([](const at::Tensor& y, int64_t batch) {
    return batch == 2 ? torch::sqrt(y.to(at::kFloat) - 1).sum() : torch::log(y.to(at::kFloat) - 1).sum();
  });
  const auto warnings = warnings_of(task, 4, {.precision = "16-mixed"});
  ASSERT_EQ(warnings.size(), 4);
  EXPECT_THAT(warnings[0], HasSubstr("Cure"));
  EXPECT_EQ(
      warnings[1],
      "batch 1 of epoch 0: again forward: aten::log after the root module: outside the operation's domain");
  EXPECT_THAT(warnings[2], HasSubstr("batch 2 of epoch 0: forward: aten::sqrt"));
  EXPECT_THAT(warnings[3], HasSubstr("batch 3 of epoch 0: again forward: aten::log"));
}

class ResumedTracer : public InFolder {
 protected:
  /// Runs `first` batches, saves the run, and resumes it up to `all` batches. Returns the later warnings.
  std::vector<std::string> warnings_after_resume(const OneWeight::Loss& loss, int64_t first, int64_t all) {
    const std::filesystem::path saved = folder_ / "saved";
    OneWeight begun(loss), resumed(loss);
    warnings_of(begun, all,
                {.precision = "16-mixed",
                 .max_epochs = -1,
                 .max_steps = first,
                 .callbacks = {std::make_shared<SaveAtEnd>(saved)}});
    return warnings_of(resumed, all, {.precision = "16-mixed", .max_epochs = 1}, saved);
  }
};

TEST_F(ResumedTracer, DoesNotReportAFaultAgain) {
  const auto fault = [](const at::Tensor& y, int64_t) { return torch::log(y.to(at::kFloat) - 1).sum(); };
  EXPECT_THAT(warnings_after_resume(fault, 2, 3),
              ElementsAre("batch 2 of epoch 0: again forward: aten::log after the root module: outside the "
                          "operation's domain"));
}

TEST_F(ResumedTracer, KeepsItsLimit) {
  const auto fault = [](const at::Tensor& y, int64_t) { return torch::log(y.to(at::kFloat) - 1).sum(); };
  const int64_t most = TrainerOptions::kMaxTraces;
  EXPECT_EQ(warnings_after_resume(fault, most - 1, most + 2).size(), 1);
}

TEST_F(ResumedTracer, CountsOverflowsInARow) {
  const auto overflow = [](const at::Tensor& y, int64_t) { return y.to(at::kFloat).sum() * 1e30; };
  const int rows = TrainerOptions::kOverflowsInARow;
  const auto warnings = warnings_after_resume(overflow, rows - 1, rows);
  ASSERT_EQ(warnings.size(), 1) << "the line about a scale that finds itself was shown before";
  EXPECT_THAT(warnings[0], HasSubstr("10 steps in a row were skipped"));
}

TEST(Tracer, ManyOverflowsInARowAreAFault) {
  OneWeight task([](const at::Tensor& y, int64_t) { return y.to(at::kFloat).sum() * 1e30; });
  const int rows = TrainerOptions::kOverflowsInARow;
  const auto warnings = warnings_of(task, 2 * rows + 1, {.precision = "16-mixed"});
  ASSERT_EQ(warnings.size(), 3);
  EXPECT_THAT(warnings[1], HasSubstr("batch 9 of epoch 0: backward: aten::to"));
  EXPECT_THAT(warnings[1], HasSubstr("10 steps in a row were skipped"));
  EXPECT_THAT(warnings[2], HasSubstr("20 steps in a row were skipped"));
}

TEST(Tracer, AFixedScaleIsNamedWithItsFlag) {
  const PrecisionOptions fixed{.loss_scale = "1048576"};
  for (const bool is_plugin : {false, true}) {
    SCOPED_TRACE(is_plugin);
    TrainerOptions options{.precision = "16-mixed", .precision_options = fixed};
    if (is_plugin) options = {.precision_plugin = make_precision("16-mixed", at::kCPU, fixed)};
    OneWeight task(plain);
    const auto warnings = warnings_of(task, 2, options);
    ASSERT_EQ(warnings.size(), 2);
    EXPECT_THAT(warnings[1], HasSubstr("batch 1 of epoch 0: again backward: aten::"));
    EXPECT_THAT(warnings[0], HasSubstr("Cure: the loss scale is fixed at 1048576 (--loss-scale"));
    EXPECT_THAT(warnings[0], Not(HasSubstr("lowers the scale by itself")));
  }
}

TEST(Tracer, WithoutAScaleNoneIsBlamed) {
  OneWeight task([](const at::Tensor& y, int64_t) { return y.to(at::kFloat).sum() * 1e6; });
  const auto warnings = warnings_of(task, 1, {.precision = "16-true"});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("Cure: the loss is not scaled"));
}

TEST(Tracer, WeightsThatComeInBrokenAreReportedOnce) {
  OneWeight task(plain);
  task.net->weight.data().fill_(std::numeric_limits<float>::quiet_NaN());
  const auto warnings = warnings_of(task, 20, {.precision = "32-true"});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("read parameter 'weight'"));
  EXPECT_THAT(warnings[0], HasSubstr("before the first step: check the file"));
  EXPECT_THAT(warnings[0], HasSubstr("All later results are wrong"));
  EXPECT_THAT(warnings[0], Not(HasSubstr("learning rate")));
  EXPECT_EQ(task.runs, 21);
}

TEST(Tracer, WithoutAScalerTheGradientIsNamedBeforeItBreaksTheWeights) {
  for (const char* mode : {"32-true", "bf16-mixed", "bf16-true"}) {
    SCOPED_TRACE(mode);
    OneWeight task(
        [](const at::Tensor& y, int64_t batch) {
          return (batch == 3 ? y + torch::sqrt(y * 0) : y).to(at::kFloat).sum();
        },
        /*rate=*/0.1);
    const auto warnings = warnings_of(task, 20, {.precision = mode});
    ASSERT_EQ(warnings.size(), 2);
    EXPECT_THAT(warnings[0],
                HasSubstr("batch 3 of epoch 0: backward: aten::div in the derivative of aten::sqrt"));
    EXPECT_THAT(warnings[1], HasSubstr("batch 4 of epoch 0: forward: "));
    EXPECT_THAT(warnings[1], HasSubstr("an earlier step made it non-finite: stop"));
    EXPECT_EQ(task.runs, 22);
  }
}

TEST(Tracer, FiniteGradientsWhoseSumIsNotAreFinite) {
  // Their sum is beyond fp16, but none of them is.
  class Wide final : public Task {
   public:
    torch::nn::Module& module() override { return *net; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(net->parameters(), 0.0)}};
    }
    at::Tensor training_step(const Batch&, int64_t) override {
      ++runs;
      return (net->weight * 6e4).to(at::kFloat).sum();
    }
    torch::nn::Linear net{torch::nn::LinearOptions(2, 2).bias(false)};
    int runs = 0;
  } task;
  task.net->weight.data().zero_();
  EXPECT_THAT(warnings_of(task, 3, {.precision = "16-true"}), testing::IsEmpty());
  EXPECT_EQ(task.runs, 3);
}

TEST(Tracer, FindsASumThatOverflowsOverTheWindow) {
  // Each batch's gradient is 4 / 2 * 2e4, and the sum of two is beyond 65504.
  OneWeight task([](const at::Tensor& y, int64_t) { return (y * 2e4).to(at::kFloat).sum(); });
  auto origins = std::make_shared<Origins>();
  const auto warnings = warnings_of(task, 2,
                                    {.precision = "16-true",
                                     .precision_options = {.loss_scale = "4"},
                                     .accumulate_grad_batches = 2,
                                     .callbacks = {origins}});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("the sum of the window's gradients of 'weight'"));
  EXPECT_THAT(warnings[0], HasSubstr("the loss scale is fixed at 4"));
  EXPECT_THAT(origins->causes, ElementsAre(NonFiniteCause::kAccumulation));
}

TEST(Tracer, ASumThatOverflowsWithoutAScaleIsNotBlamedOnOne) {
  // Each batch's gradient is 6e38 / 2, and the sum of two is beyond float32.
  OneWeight task([](const at::Tensor& y, int64_t) { return (y * 2 * 3e38).sum(); });
  const auto warnings = warnings_of(task, 2, {.precision = "32-true", .accumulate_grad_batches = 2});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("the sum of the window's gradients of 'weight'"));
  EXPECT_THAT(warnings[0],
              HasSubstr("Cure: the loss is not scaled, so this gradient is too large by itself"));
}

TEST(Tracer, ABatchThatIsLeftOutIsNotTheOrigin) {
  OneWeight task([](const at::Tensor& y, int64_t batch) {
    return batch == 0 ? at::Tensor() : torch::log(y.to(at::kFloat) - 1).sum();
  });
  const auto warnings = warnings_of(task, 2, {.precision = "16-mixed", .accumulate_grad_batches = 2});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("batch 1 of epoch 0: forward: aten::log"));
}

TEST(Tracer, ParametersWithoutAGradientOrValuesHideNoFault) {
  struct Net final : torch::nn::Module {
    at::Tensor empty = register_parameter("empty", torch::zeros({0}));
    at::Tensor unused = register_parameter("unused", torch::zeros({1}));
    at::Tensor weight = register_parameter("weight", torch::zeros({1}));
  };
  struct Roots final : Task {
    torch::nn::Module& module() override { return net; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(net.parameters(), 0.0)}};
    }
    at::Tensor training_step(const Batch&, int64_t) override {
      return net.empty.sum() + torch::sqrt(net.weight).sum();
    }
    Net net;
  } task;
  const auto warnings = warnings_of(task, 1, {.precision = "32-true"});
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0], HasSubstr("in the derivative of aten::sqrt"));
}

TEST(Tracer, AWindowThatCannotBeRunAgainIsReportedAFewTimes) {
  for (const bool throws : {true, false}) {
    std::set<int64_t> seen;
    OneWeight task([&](const at::Tensor& y, int64_t batch) {
      if (seen.insert(batch).second) return torch::log(y - 1).sum();
      TORCH_CHECK(!throws, "no second pass");
      return at::Tensor();
    });
    const auto warnings = warnings_of(task, TrainerOptions::kMaxTraces + 2, {.precision = "32-true"});
    ASSERT_EQ(warnings.size(), TrainerOptions::kMaxTraces);
    EXPECT_THAT(warnings[0],
                HasSubstr("the window that ends with batch 0 of epoch 0 could not be run again: "));
    EXPECT_THAT(warnings[0],
                HasSubstr(throws ? "no second pass" : "batch 0 returned no loss when it was repeated"));
  }
}

TEST(Tracer, AfterItsLastTraceItReadsNothing) {
  struct Counts final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.batch_index == 1) reads.emplace();
      if (batch.batch_index == 3) count = reads->count();
    }
    std::optional<HostReads> reads;
    int count = -1;
  };
  const auto reads_of = [](bool traces) {
    OneWeight task(plain);
    task.net->weight.data().fill_(std::numeric_limits<float>::quiet_NaN());  // ends the tracing in batch 0
    const auto counts = std::make_shared<Counts>();
    Batches train(5);
    Trainer({.device = "cpu", .trace_nonfinite = traces, .callbacks = {counts}}).fit(task, train);
    return counts->count;
  };
  EXPECT_EQ(reads_of(true), reads_of(false));
}

TEST(Tracer, SaysWhenItCannotFindIt) {
  class BrokenAfterwards final : public Task {
   public:
    torch::nn::Module& module() override { return *net; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(net->parameters(), 0.0)}};
    }
    at::Tensor training_step(const Batch& batch, int64_t) override { return net(batch.data).sum(); }
    void on_after_backward() override { net->weight.mutable_grad()[0][0] = written; }
    torch::nn::Linear net{1, 2};
    double written = 0;
  } task;
  for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {  // and one that stays finite
    task.written = value;
    const auto warnings = warnings_of(task, 1, {.precision = "32-true"});
    ASSERT_EQ(warnings.size(), 1) << value;
    EXPECT_THAT(warnings[0], HasSubstr("gave finite gradients when it was repeated"));
    task.net->weight.data().zero_();  // the rate is 0, and its product with the gradient is not
  }
}

TEST(Tracer, ATrainerKeepsNoBatchOfARunThatIsOver) {
  struct OneBatch final : Loader {
    void set_epoch(int64_t) override { is_given = false; }
    std::optional<Batch> next() override {
      if (std::exchange(is_given, true)) return std::nullopt;
      return Batch{data, torch::zeros({1}, at::kLong), {}};
    }
    int64_t size() const override { return 1; }
    at::Tensor data = torch::ones({1, 1});
    bool is_given = false;
  };
  OneWeight task([](const at::Tensor& y, int64_t) { return y.sum(); });
  Trainer trainer({.device = "cpu", .trace_nonfinite = true});
  const auto batch = [&] {
    OneBatch train;
    trainer.fit(task, train);
    return c10::weak_intrusive_ptr(train.data.getIntrusivePtr());
  }();
  EXPECT_TRUE(batch.expired());
}

TEST_F(ResumedTracer, AScaleThatFindsItselfIsOneLineInAllRuns) {
  const auto overflow = [](const at::Tensor& y, int64_t) { return y.to(at::kFloat).sum() * 1e30; };
  EXPECT_THAT(warnings_after_resume(overflow, 1, 2), ElementsAre());
}

TEST_F(ResumedTracer, AfterItsLastTraceTracesNoMore) {
  const auto fault = [](const at::Tensor& y, int64_t) { return torch::log(y.to(at::kFloat) - 1).sum(); };
  const int64_t most = TrainerOptions::kMaxTraces;
  EXPECT_THAT(warnings_after_resume(fault, most, most + 2), ElementsAre());
}

TEST(Tracer, AGoodStepBeginsTheCountOfOverflowsAtNothing) {
  const int rows = TrainerOptions::kOverflowsInARow;
  OneWeight task(
      [](const at::Tensor& y, int64_t batch) { return y.to(at::kFloat).sum() * (batch == 0 ? 1e-3 : 1e30); });
  EXPECT_EQ(warnings_of(task, rows, {.precision = "16-mixed"}).size(), 1) << "one too few in a row";
}

TEST(Tracer, AFaultIsNotBlamedOnAScale) {
  const auto fault = [](const at::Tensor& y, int64_t) { return torch::log(y.to(at::kFloat) - 1).sum(); };
  for (const TrainerOptions& options :
       std::vector<TrainerOptions>{{.precision = "32-true"},
                                   {.precision = "16-mixed", .precision_options = {.loss_scale = "1024"}}}) {
    OneWeight task(fault);
    const auto warnings = warnings_of(task, 1, options);
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_THAT(warnings[0], Not(HasSubstr("the loss is not scaled")));
    EXPECT_THAT(warnings[0], Not(HasSubstr("the loss scale is fixed")));
  }
}

}  // namespace
}  // namespace mantissa::tracer_test
