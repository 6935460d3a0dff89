// Tests resuming from a checkpoint of a run inside a validation, inside a window, or with nothing under way.
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/manifest.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/loop/resume_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::resume_test {
namespace {

using resume_test_support::Draws;
using resume_test_support::Resume;
using testing::HasSubstr;

TEST_F(Resume, OneThatTrainsNothingLeavesTheRandomNumbers) {
  const double expected = whole({.max_epochs = 3});
  Draws begun, idle, rest;
  torch::manual_seed(3);
  fit(begun, "run", {.max_epochs = 2});
  torch::manual_seed(9);
  EXPECT_EQ(fit(idle, "run", {.max_epochs = 2}, "run").steps, 8);
  torch::manual_seed(10);
  fit(rest, "run", {.max_epochs = 3}, "run");
  EXPECT_EQ(rest.weight(), expected);
}

struct Multiplies : Draws {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    at::mm(at::ones({8, 8}, at::kBFloat16), at::ones({8, 8}, at::kBFloat16));
    return Draws::training_step(batch, index);
  }
};

/// The kernels determine the bits, and another process might measure other kernels to be the fastest.
TEST_F(Resume, ComputesWithTheCpuKernelsOfTheCheckpoint) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  const auto product = [] {
    const std::string choices = "," + cpu_kernel_choices() + ",", name = ",bf16.small_product=";
    const size_t begin = choices.find(name) + name.size();
    return choices.substr(begin, choices.find(',', begin) - begin);
  };
  Multiplies begun, rest, measured;
  fit(begun, "run", {.precision = "bf16-mixed", .cpu_kernels = "generic", .max_epochs = 1});
  EXPECT_EQ(product(), "generic");
  forget_cpu_kernel_choices();
  fit(rest, "run", {.precision = "bf16-mixed", .max_epochs = 2}, "run");
  EXPECT_EQ(product(), "generic");
  pin_cpu_kernels("libtorch");
  fit(measured, "run", {.precision = "bf16-mixed", .max_epochs = 3}, "run");
  EXPECT_EQ(product(), "libtorch") << "as the user says now";
  forget_cpu_kernel_choices();
}

/// A loader that remembers something from one epoch to the next.
struct CountsEpochs final : Loader, Stateful {
  void set_epoch(int64_t) override { is_given = false; }
  std::optional<Batch> next() override {
    if (std::exchange(is_given, true)) return std::nullopt;
    ++epochs;
    return Batch{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}};
  }
  int64_t size() const override { return 1; }
  StateDict state_dict() const override { return {{"epochs", epochs}}; }
  void load_state_dict(const StateReader& state) override { epochs = state.at("epochs").to_count(); }
  bool is_given = false;
  int64_t epochs = 0;
};

TEST_F(Resume, ATrainingLoaderThatHasAStateGetsItBack) {
  const auto epochs_of = [&](CountsEpochs train, int64_t max_epochs, const std::filesystem::path& from) {
    OneWeight task;
    Trainer({.device = "cpu",
             .max_epochs = max_epochs,
             .callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_})}})
        .fit(task, train, nullptr, from);
    return train.epochs;
  };
  EXPECT_EQ(epochs_of({}, 2, ""), 2);
  EXPECT_EQ(epochs_of({}, 5, folder_), 5);
}

TEST_F(Resume, AResumedRunMakesAValidationThatThrew) {
  const double expected = whole({.max_epochs = 2});
  Draws begun, rest;
  begun.validation_fails = true;
  torch::manual_seed(3);
  EXPECT_THROW(fit(begun, "run", {.max_epochs = 2}), std::runtime_error);
  fit(rest, "run",
      {.max_epochs = 2, .callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "m"})}},
      "run");
  EXPECT_EQ(rest.calls, "vvffffvv");
  EXPECT_EQ(rest.weight(), expected);
}

TEST_F(Resume, AValidationThatDrawsAndBreaksOffDrawsTheSameAgain) {
  Draws all;
  all.validation_draws = true;
  torch::manual_seed(3);
  fit(all, "whole", {.max_epochs = 2});
  for (const bool by_signal : {false, true}) {
    Draws begun, rest;
    begun.validation_draws = rest.validation_draws = true;
    begun.validation_fails = !by_signal;
    if (by_signal) begun.raises = "ffffv";
    const std::string name = by_signal ? "signal" : "error";
    torch::manual_seed(3);
    if (by_signal) {
      fit(begun, name, {.max_epochs = 2});
    } else {
      EXPECT_THROW(fit(begun, name, {.max_epochs = 2}), std::runtime_error);
    }
    EXPECT_EQ(begun.calls, "ffffv");
    torch::manual_seed(4);
    fit(rest, name, {.max_epochs = 2}, name);
    EXPECT_EQ(rest.calls, "vvffffvv");
    EXPECT_EQ(rest.weight(), all.weight()) << name;
  }
}

TEST_F(Resume, AValidationInsideAWindowIsMadeWholeForASignalWaitsForTheWindow) {
  const auto options = [] {
    return TrainerOptions{.max_epochs = 2, .val_check_interval = 2, .accumulate_grad_batches = 4};
  };
  Draws all, begun, rest;
  all.validation_draws = begun.validation_draws = rest.validation_draws = true;
  torch::manual_seed(3);
  fit(all, "whole", options());
  begun.raises = "ff";
  torch::manual_seed(3);
  EXPECT_EQ(fit(begun, "run", options()).interrupted_by, SIGTERM);
  EXPECT_EQ(begun.calls, "ffvvff");
  torch::manual_seed(4);
  EXPECT_EQ(fit(rest, "run", options(), "run").interrupted_by, 0);
  EXPECT_EQ(begun.calls + rest.calls, all.calls);
  EXPECT_EQ(rest.weight(), all.weight());
}

TEST_F(Resume, AResumedRunMakesTheLastValidationOfMaxSteps) {
  const auto options = [] { return TrainerOptions{.max_epochs = -1, .max_steps = 3}; };
  for (const bool by_signal : {false, true}) {
    const std::string name = by_signal ? "signal" : "error";
    Draws begun, rest, idle;
    begun.validation_fails = !by_signal;
    if (by_signal) begun.raises = "fffv";
    if (by_signal) {
      fit(begun, name, options());
    } else {
      EXPECT_THROW(fit(begun, name, options()), std::runtime_error);
    }
    EXPECT_EQ(begun.calls, "fffv");
    const FitResult result = fit(rest, name, options(), name);
    EXPECT_EQ(rest.calls, "vv") << name;
    EXPECT_EQ(result.steps, 3);
    EXPECT_TRUE(result.metrics.contains("m"));
    EXPECT_EQ(rest.weight(), begun.weight());
    fit(idle, name, options(), name);
    EXPECT_EQ(idle.calls, "") << "nothing is left to do";
  }
}

/// Whether the checkpoint promises to continue bit for bit.
bool is_exact(const std::filesystem::path& checkpoint) {
  return StateReader(read_manifest(checkpoint).state, "").at("exact").to_bool();
}

TEST_F(Resume, AnErrorDoesNotReplaceAnExactCheckpointOfTheSameStep) {
  every_n_train_steps = 1;
  Draws begun, again;
  fit(begun, "run", {.max_epochs = -1, .max_steps = 1});
  ASSERT_TRUE(is_exact(folder_ / "run" / "0-1"));
  again.throws_at = 2;
  EXPECT_THROW(fit(again, "run", {.max_epochs = 1}, "run"), std::runtime_error);
  EXPECT_TRUE(is_exact(folder_ / "run" / "0-1")) << "a run that goes on and dies in its first batch";
  Draws window;
  window.throws_at = 4;
  EXPECT_THROW(fit(window, "window", {.accumulate_grad_batches = 2}), std::runtime_error);
  EXPECT_TRUE(is_exact(folder_ / "window" / "0-1")) << "one that dies in the window after it";
}

TEST_F(Resume, AValidationInAWindowRanksTheCheckpointOfItsStep) {
  Draws task;
  ListLoader train = loader_of({1, 2, 3, 4}), val = loader_of({1});
  const auto checkpoints = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
      .dirpath = folder_, .filename = "{step}", .monitor = "m", .save_top_k = 2, .every_n_train_steps = 1});
  Trainer({.device = "cpu",
           .max_epochs = 1,
           .val_check_interval = 3,
           .num_sanity_val_steps = 0,
           .accumulate_grad_batches = 2,
           .callbacks = {checkpoints}})
      .fit(task, train, &val);
  EXPECT_TRUE(is_exact(folder_ / "1"));
  EXPECT_EQ(checkpoints->best_model_score(), 1);
  EXPECT_EQ(checkpoints->best_model_path().filename(), "2");
}

TEST_F(Resume, AResumedRunMakesTheLastValidationThatASignalCutShort) {
  Draws begun, rest;
  begun.raises = "ffffffffv";
  const FitResult cut = fit(begun, "run", {.max_epochs = 2, .check_val_every_n_epoch = 5});
  EXPECT_EQ(cut.interrupted_by, SIGTERM);
  const FitResult result = fit(rest, "run", {.max_epochs = 2, .check_val_every_n_epoch = 5}, "run");
  EXPECT_EQ(rest.calls, "vv");
  EXPECT_EQ(result.epochs, 2);
  EXPECT_TRUE(result.metrics.contains("m"));
}

TEST_F(Resume, WhatTheFirstValidationStopsEndsThere) {
  // The checkpoint of step 2 comes before its validation, which stops the run.
  struct Stops final : Callback {
    void on_validation_end(Trainer& trainer) override { trainer.stop("enough"); }
  };
  every_n_train_steps = 2;
  const auto options = [] {
    return TrainerOptions{.max_epochs = 2, .val_check_interval = 2, .callbacks = {std::make_shared<Stops>()}};
  };
  Draws begun, rest;
  begun.validation_fails = true;
  EXPECT_THROW(fit(begun, "run", options()), std::runtime_error);
  EXPECT_EQ(fit(rest, "run", options(), "run").steps, 2);
  EXPECT_EQ(rest.calls, "vv");
}

TEST_F(Resume, AStopThatWaitsForMinEpochsWaitsInTheResumedRunToo) {
  struct Stops final : Callback {
    void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
      if (batch.global_step == 1) trainer.stop("enough");
    }
  };
  const auto options = [] {
    return TrainerOptions{.max_epochs = 10, .min_epochs = 3, .callbacks = {std::make_shared<Stops>()}};
  };
  Draws all, begun, rest, further;
  EXPECT_EQ(fit(all, "whole", options()).epochs, 3);
  begun.raises = "ffffvvf";
  EXPECT_EQ(fit(begun, "run", options()).interrupted_by, SIGTERM);
  const FitResult result = fit(rest, "run", options(), "run");
  EXPECT_EQ(result.epochs, 3);
  EXPECT_EQ(result.stopped_by, "enough");
  EXPECT_EQ(fit(further, "run", {.max_epochs = 5}, "run").epochs, 5) << "that stop has had its effect";
}

TEST_F(Resume, NoCheckpointMixesTheLoadedWeightsWithTheStateOfANewRun) {
  struct Early final : Callback {
    void on_fit_start(Trainer& trainer, const FitPlan&) override {
      said = error_of([&] { trainer.checkpoint(); });
    }
    void on_train_start(Trainer& trainer) override { step = trainer.checkpoint().step; }
    std::string said;
    int64_t step = -1;
  };
  const auto early = std::make_shared<Early>();
  Draws begun, rest;
  fit(begun, "run", {.max_epochs = 1});
  fit(rest, "run", {.max_epochs = 2, .callbacks = {early}}, "run");
  EXPECT_THAT(early->said, HasSubstr("its state is not loaded yet; call it from on_train_start() on"));
  EXPECT_EQ(early->step, 4);
}

TEST_F(Resume, AWindowThatIsBegunAgainCountsOnce) {
  Draws begun, rest;
  begun.throws_at = 4;
  EXPECT_THROW(fit(begun, "run", {.accumulate_grad_batches = 2}), std::runtime_error);
  const std::string warnings = warnings_of([&] {
    const FitResult result = fit(rest, "run", {.accumulate_grad_batches = 2}, "run");
    EXPECT_EQ(rest.calls, "ffvv");
    EXPECT_EQ(result.steps, 2);
    EXPECT_EQ(result.metrics.at("x"), 2.5) << "the mean of 1, 2, 3 and 4, each once";
  });
  EXPECT_THAT(warnings, HasSubstr("inside a batch or an accumulation window, which is repeated"));
}

TEST_F(Resume, ACheckpointOfABatchThatThrewSaysSo) {
  Draws begun, rest;
  begun.throws_at = 3;
  EXPECT_THROW(fit(begun, "run", {}), std::runtime_error);
  EXPECT_THAT(warnings_of([&] { fit(rest, "run", {}, "run"); }), HasSubstr("saved inside a batch"));
}

TEST_F(Resume, ACheckpointHasTheAveragedWeightsAndResumesWithTheTrainedOnes) {
  const auto average = [] {
    return std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.5}});
  };
  struct Weights final : Callback {
    void on_train_end(Trainer& trainer) override { last = trainer.module()->parameters()[0].item<double>(); }
    double last = 0;
  };
  const auto trained = std::make_shared<Weights>(), again = std::make_shared<Weights>();
  Draws begun, rest, all;
  torch::manual_seed(3);
  fit(begun, "run", {.max_epochs = 1, .callbacks = {average(), trained}});
  const Checkpoint saved = load_checkpoint(list_checkpoints(folder_ / "run").front().path);
  EXPECT_EQ(saved.weights.at("weight").item<double>(), begun.weight()) << "fit() leaves the averaged weight";
  EXPECT_NE(trained->last, begun.weight());
  fit(rest, "run", {.max_epochs = 2, .callbacks = {average(), again}}, "run");
  torch::manual_seed(3);
  const auto whole = std::make_shared<Weights>();
  fit(all, "whole", {.max_epochs = 2, .callbacks = {average(), whole}});
  EXPECT_EQ(again->last, whole->last);
  EXPECT_EQ(rest.weight(), all.weight());
}

TEST_F(Resume, AnEpochThatIsShorterNowIsOver) {
  Draws begun, rest;
  begun.raises = "fff";
  fit(begun, "run", {.max_epochs = 1, .overfit_batches = 4});
  EXPECT_EQ(fit(rest, "run", {.max_epochs = 1, .overfit_batches = 2}, "run").epochs, 1);
  EXPECT_EQ(rest.calls, "vv") << "the two batches of validation";
}

}  // namespace
}  // namespace mantissa::resume_test
