// Tests what resuming from a checkpoint refuses, and what it reports.
#include <cstdint>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/manifest.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/loop/resume_test_support_internal.h"
#include "mantissa/trainer/loop/saved_parts_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::refused_resume_test {
namespace {

using resume_test_support::Draws;
using testing::AllOf;
using testing::HasSubstr;

class RefusedResume : public resume_test_support::Resume {};

TEST_F(RefusedResume, KernelsThatAreNotHereAreNamedUpToThree) {
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

TEST_F(RefusedResume, AStateThatIsRefusedLeavesTheCheckpointAsItIs) {
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

TEST_F(RefusedResume, AFolderWithoutCheckpointsIsNamed) {
  std::filesystem::create_directories(folder_ / "empty");
  Draws task;
  EXPECT_THAT(error_of([&] { fit(task, "run", {}, "empty"); }),
              HasSubstr("holds no checkpoint; leave ckpt_path empty to begin a run"));
}

TEST_F(RefusedResume, WhatIsAnotherRunsSetupIsReported) {
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

TEST_F(RefusedResume, NumbersThatNoRunCanHaveComeToAreRefused) {
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

TEST_F(RefusedResume, MasterWeightsOfAnotherShapeAreRefused) {
  struct Wide final : Draws {
    Wide() { net = torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)); }
  } wide;
  Draws begun;
  const TrainerOptions options{.precision = "bf16-true", .precision_options = {.master_weights = true}};
  fit(begun, "run", options);
  EXPECT_THAT(error_of([&] { fit(wide, "wide", options, "run"); }),
              HasSubstr("has a master weight 'weight' with a different shape from the weight; resume with"));
}

TEST_F(RefusedResume, AModelWithAnotherParameterIsRefused) {
  struct WithBias final : Draws {
    WithBias() { net = torch::nn::Linear(1, 1); }
  } rest;
  Draws begun;
  fit(begun, "run", {});
  EXPECT_THAT(error_of([&] { fit(rest, "rest", {}, "run"); }), HasSubstr("bias"));
}

}  // namespace
}  // namespace mantissa::refused_resume_test
