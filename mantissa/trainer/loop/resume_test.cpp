// Tests resuming from a checkpoint of a run inside a validation, inside a window, or with nothing under way.
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/manifest.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/loop/saved_parts_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::resume_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Draws random numbers in each step: the weight shows whether they were the right ones.
struct Draws : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t) override {
    calls += "f";
    log("x", batch.data.mean());
    if (throws_at == batch.data.item<float>()) throw std::runtime_error("training_step failed");
    if (raises == calls) std::raise(SIGTERM);
    return (net->weight * batch.data * torch::rand({})).sum();
  }
  void validation_step(const Batch& batch, int64_t) override {
    calls += "v";
    if (validation_draws) torch::rand({});
    if (validation_fails) throw std::runtime_error("validation_step failed");
    if (raises == calls) std::raise(SIGTERM);
    log("m", batch.data.mean());
  }
  bool validation_fails = false, validation_draws = false;
  std::string calls, raises;
};

class Resume : public InFolder {
 protected:
  /// Fits batches 1 to 4 with two validation batches, and saves checkpoints in the folder `name`.
  FitResult fit(Draws& task, const std::string& name, TrainerOptions options, const std::string& from = "") {
    ListLoader train = loader_of({1, 2, 3, 4}), val = loader_of({1, 1});
    options.device = "cpu";
    options.num_sanity_val_steps = 0;
    options.callbacks.push_back(std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / name,
                               .filename = "{epoch}-{step}",
                               .every_n_train_steps = every_n_train_steps}));
    return Trainer(std::move(options)).fit(task, train, &val, from.empty() ? "" : folder_ / from);
  }
  std::string warnings_of(const std::function<void()>& run) {
    testing::internal::CaptureStderr();
    run();
    return testing::internal::GetCapturedStderr();
  }
  double whole(TrainerOptions options) {
    Draws task;
    torch::manual_seed(3);  // after the constructor, which draws the first weights
    fit(task, "whole", std::move(options));
    return task.weight();
  }

  int64_t every_n_train_steps = 0;
};

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

TEST_F(Resume, KernelsThatAreNotHereAreNamedUpToThree) {
  const auto precision = make_precision("32-true", at::kCPU);
  SavedPrecision saved(*precision);
  const auto difference = [&](const std::string& kernels) {
    StateDict state;
    saved.save(state);
    state.insert_or_assign("cpu_kernels", kernels);
    Differences differences;
    saved.load(StateReader(state), differences);
    return differences.at(0);
  };
  EXPECT_THAT(difference("bf16.a=generic,bf16.b=generic,bf16.c=generic"),
              HasSubstr("its CPU kernels bf16.a=generic, bf16.b=generic, bf16.c=generic are not available"));
  EXPECT_THAT(difference("bf16.a=generic,bf16.b=generic,bf16.c=generic,bf16.d=generic,bf16.e=generic"),
              HasSubstr("bf16.c=generic and 2 more are not available here"));
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

TEST_F(Resume, AStateThatIsRefusedLeavesTheCheckpointAsItIs) {
  Draws begun;
  fit(begun, "run", {.max_epochs = 1});
  const auto path = list_checkpoints(folder_ / "run").front().path;
  Checkpoint bad = load_checkpoint(path);
  bad.state.at("rng").get_if<StateDict>()->at("cpu") = at::zeros({3}, at::kByte);
  save_checkpoint(path, bad);
  const int64_t written = read_manifest(path).written_unix_ms;
  Draws rest;
  EXPECT_NE(error_of([&] { fit(rest, "run", {.max_epochs = 2}, "run"); }), "no error");
  EXPECT_EQ(list_checkpoints(folder_ / "run").size(), 1U);
  EXPECT_EQ(read_manifest(path).written_unix_ms, written);
}

TEST_F(Resume, AFolderWithoutCheckpointsIsNamed) {
  std::filesystem::create_directories(folder_ / "empty");
  Draws task;
  EXPECT_THAT(error_of([&] { fit(task, "run", {}, "empty"); }),
              HasSubstr("holds no checkpoint; leave ckpt_path empty to begin a run"));
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

TEST_F(Resume, WhatIsAnotherRunsSetupIsReported) {
  Draws begun, rest;
  fit(begun, "run", {.max_epochs = 1, .callbacks = {std::make_shared<EMAWeightAveraging>()}});
  EXPECT_THAT(warnings_of([&] {
                fit(rest, "rest",
                    {.max_epochs = 2,
                     .limit_train_batches = 2,
                     .accumulate_grad_batches = 2,
                     .gradient_clip_val = 0.5},
                    "run");
              }),
              AllOf(HasSubstr("number of batches an epoch was 4 and is 2"),
                    HasSubstr("accumulate_grad_batches was 1 and is 2"),
                    HasSubstr("gradient_clip_val was 0 and is 0.5"),
                    HasSubstr("its callback mantissa::EMAWeightAveraging is not in this run")));
}

TEST_F(Resume, NumbersThatNoRunCanHaveComeToAreRefused) {
  Draws begun;
  fit(begun, "run",
      {.max_epochs = 2,
       .callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "m", .patience = 9})}});
  const Checkpoint saved = load_checkpoint(list_checkpoints(folder_ / "run").front().path);
  constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto error_with = [&](const std::vector<std::string>& path, const StateValue& value) {
    Checkpoint changed = saved;
    StateDict* dict = &changed.state;
    for (size_t i = 0; i + 1 < path.size(); ++i) dict = dict->at(path[i]).get_if<StateDict>();
    EXPECT_TRUE(dict->contains(path.back())) << path.back();
    dict->insert_or_assign(path.back(), value);
    save_checkpoint(folder_ / "changed", changed);
    Draws rest;
    const std::string error = error_of([&] {
      fit(rest, "rest",
          {.max_epochs = 3,
           .callbacks = {std::make_shared<EarlyStopping>(
               EarlyStoppingOptions{.monitor = "m", .patience = 9})}},
          "changed");
    });
    EXPECT_EQ(rest.calls.empty(), error != "no error") << error;
    return error;
  };
  const std::string limit = "a number from 0 to 9007199254740992 was expected";
  for (const char* name : {"epoch", "batches", "total_batches", "global_step", "skipped_steps"}) {
    const std::string key = std::string("progress.") + name;
    EXPECT_THAT(error_with({"progress", name}, kMaxInt64), AllOf(HasSubstr(key), HasSubstr(limit)));
    EXPECT_THAT(error_with({"progress", name}, -1), AllOf(HasSubstr(key + ": is -1"), HasSubstr(limit)));
  }
  EXPECT_THAT(error_with({"progress", "validated_batches"}, -2), HasSubstr("is -2; a number from -1 to"));
  EXPECT_THAT(error_with({"progress", "batches"}, 9),
              HasSubstr("progress.batches: is 9, which is above the 8 of total_batches"));
  EXPECT_THAT(error_with({"progress", "batches"}, 5),
              HasSubstr("progress.batches: is 5, which is above the 4 batches of an epoch in setup"));
  EXPECT_THAT(error_with({"progress", "epoch"}, 9), HasSubstr("progress.epoch: is 9, which is above the 8"));
  EXPECT_THAT(error_with({"progress", "skipped_steps"}, 9),
              HasSubstr("is 9, which is above the 8 of global_step"));
  EXPECT_THAT(error_with({"progress", "global_step"}, 7), HasSubstr("is 7, and the checkpoint's step is 8"));
  for (const double seconds : {nan, -1.0, 1e300})
    EXPECT_THAT(error_with({"seconds"}, seconds), HasSubstr("a number from 0 to 1e+12 was expected"));
  EXPECT_THAT(error_with({"setup", "number of batches an epoch"}, "-4"),
              HasSubstr("is '-4'; a number from 0"));
  EXPECT_THAT(error_with({"training_metrics", "x", "weight"}, nan), HasSubstr("x.weight: is nan; a number"));
  const std::string& stopping = saved.state.at("callbacks").get_if<StateDict>()->begin()->first;
  EXPECT_THAT(error_with({"callbacks", stopping, "wait_count"}, kMaxInt64), HasSubstr(limit));
  EXPECT_EQ(error_with({"seconds"}, 1), "no error");
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

TEST_F(Resume, MasterWeightsOfAnotherShapeAreRefused) {
  struct Wide final : Draws {
    Wide() { net = torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)); }
  } wide;
  Draws begun;
  const TrainerOptions options{.precision = "bf16-true", .precision_options = {.master_weights = true}};
  fit(begun, "run", options);
  EXPECT_THAT(error_of([&] { fit(wide, "wide", options, "run"); }),
              HasSubstr("has a master weight 'weight' with a different shape from the weight; resume with"));
}

TEST_F(Resume, AModelWithAnotherParameterIsRefused) {
  struct WithBias final : Draws {
    WithBias() { net = torch::nn::Linear(1, 1); }
  } rest;
  Draws begun;
  fit(begun, "run", {});
  EXPECT_THAT(error_of([&] { fit(rest, "rest", {}, "run"); }), HasSubstr("bias"));
}

}  // namespace
}  // namespace mantissa::resume_test
