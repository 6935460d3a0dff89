#include "mantissa/trainer/fallback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::fallback_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A product that fp16 cannot hold once the inputs are large.
struct Product final : OneWeight {
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-2))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    if (index == throws_at_batch) throw std::runtime_error("killed");
    return (net->forward(batch.data).to(at::kFloat) * 1e-4 + 1).square().sum();
  }
  int64_t throws_at_batch = -1;
};

/// Ten batches of 1, and thirty of 70,000.
ListLoader batches() {
  std::vector<float> values(10, 1.F);
  values.insert(values.end(), 30, 7e4F);
  return loader_of(values);
}

class Fallbacks : public InFolder {
 protected:
  FallbackOptions options(bool resume = false) const {
    return {.precision = {"16-mixed", "bf16-mixed", "32-true"},
            .dirpath = folder_ / "run",
            .resume = resume,
            .monitor = {.patience = 5}};
  }
  FitResult fit(Product& task, const std::string& precision, const std::shared_ptr<Callback>& monitor,
                const std::filesystem::path& from, int64_t max_steps = -1) const {
    TrainerOptions run{.precision = precision, .device = "cpu", .max_steps = max_steps};
    run.callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
        .dirpath = folder_ / "run", .every_n_train_steps = 4, .save_on_exception = false, .async = false})};
    if (monitor) run.callbacks.push_back(monitor);
    ListLoader train = batches();
    return Trainer(run).fit(task, train, nullptr, from);
  }
};

TEST_F(Fallbacks, ContinuesFromTheLastGoodStateInTheNextMode) {
  double weight = 0;
  std::vector<std::string> modes;
  const FallbackResult result =
      fit_with_fallback(options(), [&](const std::string& mode, const auto& monitor, const auto& from) {
        modes.push_back(mode);
        Product task;
        const FitResult fitted = fit(task, mode, monitor, from);
        weight = task.weight();
        return fitted;
      });
  EXPECT_THAT(modes, ElementsAre("16-mixed", "bf16-mixed"));
  EXPECT_EQ(result.precision, "bf16-mixed");
  EXPECT_EQ(result.fit.steps, 40);
  EXPECT_EQ(result.fit.skipped_steps, 0) << "those of the run that diverged do not count";
  ASSERT_EQ(result.fallbacks.size(), 1);
  const Fallback& fallback = result.fallbacks[0];
  EXPECT_EQ(fallback.from + " " + fallback.to, "16-mixed bf16-mixed");
  EXPECT_EQ(fallback.step, 15);
  EXPECT_EQ(fallback.continues, 8);
  EXPECT_EQ(fallback.reason, "the loss or the gradients have not been finite for 5 steps");

  // The same by hand: eight steps in one mode, the others in the next.
  std::filesystem::remove_all(folder_ / "run");
  Product first, second;
  fit(first, "16-mixed", nullptr, "", 8);
  fit(second, "bf16-mixed", nullptr, folder_ / "run");
  EXPECT_EQ(weight, second.weight());
}

TEST_F(Fallbacks, AKilledTrainingContinuesBitForBit) {
  const auto train = [&](bool resume, int64_t throws_at, const std::string& killed_in,
                         std::string* began = nullptr) {
    double weight = 0;
    fit_with_fallback(options(resume), [&](const std::string& mode, const auto& monitor, const auto& from) {
      if (began && began->empty()) *began = mode;
      Product task;
      if (mode == killed_in) task.throws_at_batch = throws_at;
      const FitResult fitted = fit(task, mode, monitor, from);
      weight = task.weight();
      return fitted;
    });
    return weight;
  };
  const double expected = train(false, -1, "");
  for (const auto& [mode, batch] :
       {std::pair("16-mixed", 6), {"16-mixed", 13}, {"bf16-mixed", 9}, {"bf16-mixed", 30}}) {
    std::filesystem::remove_all(folder_ / "run");
    EXPECT_THROW(train(false, batch, mode), std::runtime_error);
    std::string began;
    EXPECT_EQ(train(true, -1, "", &began), expected) << mode << ' ' << batch;
    EXPECT_EQ(began, mode == std::string("bf16-mixed") && batch == 30 ? "bf16-mixed" : "16-mixed");
  }
}

TEST_F(Fallbacks, BeginsAnewWithoutAGoodCheckpointAndEndsWithTheLastMode) {
  FallbackOptions all = options();
  all.precision = {"16-mixed", "32-true"};
  int runs = 0;
  const FallbackResult result =
      fit_with_fallback(all, [&](const std::string& mode, const auto& monitor, const auto& from) {
        ++runs;
        EXPECT_EQ(from, "");
        OneWeight task;
        TrainerOptions run{.precision = mode, .device = "cpu"};
        run.callbacks = {monitor};
        ListLoader train = loader_of(std::vector<float>(10, kInf));
        return Trainer(run).fit(task, train);
      });
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(result.precision, "32-true");
  EXPECT_EQ(result.fallbacks.size(), 1);
  EXPECT_EQ(result.fallbacks[0].continues, 0);
  EXPECT_THAT(result.fit.stopped_by, HasSubstr("DivergenceMonitor"));
}

TEST_F(Fallbacks, AFinishedTrainingAndOneWithoutStepsAreNoErrors) {
  const auto steps = [&](bool resume, int64_t max_steps) {
    return fit_with_fallback(options(resume),
                             [&](const std::string& mode, const auto& monitor, const auto& from) {
                               Product task;
                               return fit(task, mode, monitor, from, max_steps);
                             })
        .fit.steps;
  };
  EXPECT_EQ(steps(/*resume=*/false, 0), 0);
  EXPECT_EQ(steps(/*resume=*/true, 4), 4);
  EXPECT_EQ(steps(/*resume=*/true, 4), 4);
  const auto ends_at_once = [](const auto&...) { return FitResult{}; };
  EXPECT_EQ(fit_with_fallback(options(/*resume=*/true), ends_at_once).fit.steps, 0);
}

TEST_F(Fallbacks, RefusesWhatCannotWork) {
  const auto error = [&](const FallbackOptions& wrong, bool uses_monitor = true) {
    return error_of([&] {
      fit_with_fallback(wrong, [&](const std::string& mode, const auto& monitor, const auto& from) {
        Product task;
        return fit(task, mode, uses_monitor ? monitor : nullptr, from, 4);
      });
    });
  };
  FallbackOptions wrong = options();
  wrong.precision.clear();
  EXPECT_THAT(error(wrong), HasSubstr("precision names no mode"));
  wrong.precision = {"16-mixed", "17-mixed"};
  EXPECT_THAT(error(wrong), HasSubstr("17-mixed"));
  wrong.precision = {"16-mixed", "32-true", "16-mixed"};
  EXPECT_THAT(error(wrong), HasSubstr("names 16-mixed twice"));
  EXPECT_THAT(error(options(), false), HasSubstr("the run in 16-mixed did not call its monitor"));
  EXPECT_THAT(error(options()), HasSubstr("has checkpoints of another training"));
  wrong = options(/*resume=*/true);
  wrong.precision = {"bf16-mixed", "32-true"};
  EXPECT_THAT(error(wrong), HasSubstr("was trained in 16-mixed, and precision names bf16-mixed, 32-true"));
}

}  // namespace
}  // namespace mantissa::fallback_test
