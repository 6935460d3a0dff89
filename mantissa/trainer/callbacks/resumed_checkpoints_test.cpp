// Tests what a resumed run makes of the checkpoints that it finds.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/manifest.h"
#include "mantissa/trainer/callbacks/divergence_monitor.h"
#include "mantissa/trainer/callbacks/kept_checkpoints_test_support_internal.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::resumed_checkpoints_test {
namespace {

using namespace kept_checkpoints;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

class ResumedCheckpoints : public InFolderOfCheckpoints {};

/// Resumes from `from`, and trains to `epochs` in all.
std::shared_ptr<ModelCheckpoint> resume(const std::filesystem::path& from, ModelCheckpointOptions options,
                                        int64_t epochs, std::vector<double> metrics) {
  Logs task;
  task.values = std::move(metrics);
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  auto checkpoints = std::make_shared<ModelCheckpoint>(std::move(options));
  Trainer({.device = "cpu", .max_epochs = epochs, .num_sanity_val_steps = 0, .callbacks = {checkpoints}})
      .fit(task, train, &val, from);
  return checkpoints;
}

TEST_F(ResumedCheckpoints, AResumedRunInAnotherFolderLeavesWhatItFindsThere) {
  const auto in = [&](const char* name) {
    return ModelCheckpointOptions{
        .dirpath = folder_ / name, .filename = "{epoch}", .monitor = "m", .save_top_k = 2};
  };
  fit(in("a"), {0.1});
  fit(in("b"), {0.9, 0.8});
  testing::internal::CaptureStderr();
  const auto checkpoints = resume(folder_ / "a" / "0", in("b"), 3, {0.7, 0.6});
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("holds 2 checkpoints of another run"));
  EXPECT_THAT(warnings, Not(HasSubstr("no longer holds"))) << "a folder of its own is nothing to warn of";
  EXPECT_THAT(names("b"), UnorderedElementsAre("0", "1", "1-v1", "2"));
  EXPECT_EQ(checkpoints->best_model_score(), 0.6);
  fit(in("c"), {0.9});
  const int64_t written = read_manifest(folder_ / "c" / "0").written_unix_ms;
  resume(folder_ / "a" / "0", in("c"), 1, {});
  EXPECT_THAT(names("c"), UnorderedElementsAre("0", "0-v1"))
      << "nothing to train, and still something to save";
  EXPECT_EQ(read_manifest(folder_ / "c" / "0").written_unix_ms, written);
}

/// Ends a run as a kill would: nothing is saved after it.
struct Breaks final : Callback {
  explicit Breaks(int64_t step_) : step(step_) {}
  void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
    if (batch.global_step == step) throw std::runtime_error("killed");
  }
  int64_t step;
};

// One keeps the newest checkpoint, the other the best one. The one that saves first saves an older state of
// the other.
TEST_F(ResumedCheckpoints, ARunWithTwoOfThemResumesFromEitherWithoutWarning) {
  for (const bool best_first : {false, true}) {
    for (const char* from : {"newest", "best"}) {
      for (const int64_t breaks_at : {5, 6, 0}) {
        std::filesystem::remove_all(folder_);
        std::shared_ptr<ModelCheckpoint> best;
        const auto train = [&](int64_t epochs, const std::vector<double>& metrics, int64_t breaks,
                               const std::filesystem::path& ckpt) {
          best = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
              .dirpath = folder_ / "best", .filename = "{step}", .monitor = "m", .save_on_exception = false});
          const auto newest =
              std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / "newest",
                                                                       .filename = "{step}",
                                                                       .every_n_train_steps = 1,
                                                                       .save_on_exception = false});
          std::vector<std::shared_ptr<Callback>> callbacks{newest, best};
          if (best_first) std::swap(callbacks[0], callbacks[1]);
          callbacks.push_back(std::make_shared<Breaks>(breaks));
          Logs task;
          task.values = metrics;
          ListLoader loader = loader_of({1, 2}), val = loader_of({1});
          Trainer trainer(
              {.device = "cpu", .max_epochs = epochs, .num_sanity_val_steps = 0, .callbacks = callbacks});
          if (breaks > 0) {
            EXPECT_THROW(trainer.fit(task, loader, &val, ckpt), std::runtime_error);
          } else {
            trainer.fit(task, loader, &val, ckpt);
          }
        };
        train(/*epochs=*/breaks_at == 0 ? 3 : 4, {0.5, 0.4, 0.3, 0.2}, breaks_at, "");
        testing::internal::CaptureStderr();
        train(5, {0.9, 0.8, 0.7}, 0, folder_ / from);
        EXPECT_EQ(testing::internal::GetCapturedStderr(), "")
            << from << ", broken at step " << breaks_at << (best_first ? ", the best's first" : "");
        EXPECT_NE(best->best_model_path(), "");
        EXPECT_TRUE(std::filesystem::exists(best->best_model_path())) << best->best_model_path();
        EXPECT_LE(best->best_model_score(), breaks_at == 0 ? 0.3 : 0.4) << from << breaks_at;
      }
    }
  }
}

TEST_F(ResumedCheckpoints, ABestThatSomebodyRemovedIsWarnedOf) {
  const ModelCheckpointOptions two{
      .dirpath = folder_, .filename = "{epoch}", .monitor = "m", .save_top_k = 2};
  fit(two, {0.1, 0.2, 0.3});
  std::filesystem::remove_all(folder_ / "0");
  testing::internal::CaptureStderr();
  const auto checkpoints = resume(folder_, two, 4, {0.4});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("no longer holds this run's '0'; the best checkpoints are chosen from the rest"));
  EXPECT_EQ(checkpoints->best_model_path().filename(), "1");
}

TEST_F(ResumedCheckpoints, AResumedRunKeepsAllToo) {
  const ModelCheckpointOptions all{.dirpath = folder_, .filename = "x", .save_top_k = -1};
  fit(all, {3, 2});
  resume(folder_, all, 4, {1, 0});
  EXPECT_THAT(names(), UnorderedElementsAre("x", "x-v1", "x-v2", "x-v3"));
}

TEST_F(ResumedCheckpoints, AResumedRunReportsNewerCheckpoints) {
  const ModelCheckpointOptions all{.dirpath = folder_, .filename = "{epoch}", .save_top_k = -1};
  fit(all, {3, 2, 1});
  testing::internal::CaptureStderr();
  resume(folder_ / "0", all, 2, {5});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("holds 2 checkpoints of this run with more than the 2 steps"));
  EXPECT_THAT(names(), UnorderedElementsAre("0", "1", "2"));
}

TEST_F(ResumedCheckpoints, ARunThatResumesAtItsEndSavesNothingAgain) {
  const ModelCheckpointOptions all{.dirpath = folder_, .filename = "{epoch}", .save_top_k = -1};
  fit(all, {3, 2, 1});
  resume(folder_ / "0", all, 1, {});
  EXPECT_THAT(names(), UnorderedElementsAre("0", "1", "2")) << "the newer ones are not where it resumes";
}

TEST_F(ResumedCheckpoints, AResumedRunGivesTheNameOfTheBestToABetterOne) {
  const ModelCheckpointOptions options{.dirpath = folder_, .filename = "c", .monitor = "m"};
  fit(options, {1, 2});
  EXPECT_THAT(names(), UnorderedElementsAre("c", "c-v1"));
  Logs task;
  task.values = {0};
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  Trainer({.device = "cpu",
           .max_epochs = 3,
           .num_sanity_val_steps = 0,
           .callbacks = {std::make_shared<ModelCheckpoint>(options)}})
      .fit(task, train, &val, folder_);
  EXPECT_THAT(names(), ElementsAre("c"));
}

TEST_F(ResumedCheckpoints, AnotherRunsCheckpointOfTheSameStepIsNotItsOwn) {
  fit({.dirpath = folder_ / "mine", .filename = "mine"}, {1});
  fit({.dirpath = folder_ / "theirs", .filename = "theirs"}, {1});
  testing::internal::CaptureStderr();
  resume(folder_ / "mine", {.dirpath = folder_ / "theirs", .filename = "mine"}, 2, {1});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("holds 1 checkpoint of another run"));
  EXPECT_THAT(names("theirs"), UnorderedElementsAre("mine", "theirs"));
}

TEST_F(ResumedCheckpoints, ADamagedOneIsNoRunsAndItsNameIsFree) {
  fit({.dirpath = folder_, .filename = "x"}, {1});
  std::ofstream(folder_ / "x" / "manifest.json") << "{";
  testing::internal::CaptureStderr();
  fit({.dirpath = folder_, .filename = "x"}, {1});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(names(), ElementsAre("x"));
}

TEST_F(ResumedCheckpoints, OnesWithoutAScoreKeepTheirNames) {
  const ModelCheckpointOptions all{
      .dirpath = folder_, .filename = "x", .monitor = "m", .save_top_k = -1, .every_n_train_steps = 1};
  fit(all, {2});
  resume(folder_, all, 2, {1});
  EXPECT_THAT(names(), UnorderedElementsAre("x", "x-v1", "x-v2", "x-v3"));
}

TEST_F(ResumedCheckpoints, AreFoundBesideTheStatesOfOtherCallbacks) {
  for (const int64_t epochs : {1, 2}) {
    OneWeight task;
    ListLoader train = loader_of({1, 2});
    Trainer({.device = "cpu",
             .max_epochs = epochs,
             .callbacks = {std::make_shared<DivergenceMonitor>(),
                           std::make_shared<ModelCheckpoint>(
                               ModelCheckpointOptions{.dirpath = folder_, .filename = "{epoch}"})}})
        .fit(task, train, nullptr, epochs == 1 ? "" : folder_);
  }
  EXPECT_THAT(names(), ElementsAre("1")) << "the first one has gone with the second";
}

TEST_F(ResumedCheckpoints, OneOfTheSameStepKeepsItsName) {
  const ModelCheckpointOptions all{.dirpath = folder_,
                                   .filename = "{step}",
                                   .save_top_k = -1,
                                   .every_n_train_steps = 1,
                                   .save_on_exception = false};
  Logs task;  // has no metric to log, so that the validation after step 2 fails
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  Trainer trainer(
      {.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {std::make_shared<ModelCheckpoint>(all)}});
  EXPECT_THROW(trainer.fit(task, train, &val), std::out_of_range);
  resume(folder_, all, 1, {0.5});
  EXPECT_THAT(names(), ElementsAre("2", "1")) << "the end of the epoch replaces its last step";
}

TEST_F(ResumedCheckpoints, NewerOnesAreNotReportedInAFolderFromWhichItDoesNotResume) {
  std::string warnings;
  for (const char* from : {"", "often/3"}) {
    std::vector<std::shared_ptr<Callback>> callbacks;
    for (const int64_t interval : {1, 2})
      callbacks.push_back(std::make_shared<ModelCheckpoint>(
          ModelCheckpointOptions{.dirpath = folder_ / (interval == 1 ? "often" : "rarely"),
                                 .filename = "{step}",
                                 .save_top_k = -1,
                                 .save_last = false,
                                 .every_n_epochs = 0,
                                 .every_n_train_steps = interval}));
    OneWeight task;
    ListLoader train = loader_of({1, 2, 3, 4});
    testing::internal::CaptureStderr();
    Trainer({.device = "cpu", .callbacks = callbacks})
        .fit(task, train, nullptr, *from == '\0' ? "" : folder_ / from);
    warnings = testing::internal::GetCapturedStderr();
  }
  EXPECT_THAT(warnings, HasSubstr("often' holds 1 checkpoint of this run with more than the 3 steps"));
  EXPECT_THAT(warnings, Not(HasSubstr("rarely")));
}

}  // namespace
}  // namespace mantissa::resumed_checkpoints_test
