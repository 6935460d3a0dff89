// Tests what a ModelCheckpoint saves at which moment, and under which name.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/manifest.h"
#include "mantissa/trainer/callbacks/kept_checkpoints_test_support_internal.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::saved_checkpoints_test {
namespace {

namespace fs = std::filesystem;
using namespace kept_checkpoints;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

using SavedCheckpoints = InFolderOfCheckpoints;

/// Resumes from `from`, and trains to `epochs` in all.
std::shared_ptr<ModelCheckpoint> resume(const fs::path& from, const ModelCheckpointOptions& options,
                                        int64_t epochs, std::vector<double> metrics) {
  Logs task;
  task.values = std::move(metrics);
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  auto checkpoints = std::make_shared<ModelCheckpoint>(options);
  Trainer({.device = "cpu", .max_epochs = epochs, .num_sanity_val_steps = 0, .callbacks = {checkpoints}})
      .fit(task, train, &val, from);
  return checkpoints;
}

TEST_F(SavedCheckpoints, AreNamedAfterTheirOwnEpoch) {
  const ModelCheckpointOptions all{.dirpath = folder_,
                                   .filename = "{epoch}-{step}",
                                   .save_top_k = -1,
                                   .every_n_epochs = 1,
                                   .every_n_train_steps = 1};
  EXPECT_EQ(train(all, {.max_epochs = 2}), "");
  EXPECT_THAT(names(), UnorderedElementsAre("0-1", "0-2", "1-3", "1-4"));
}

TEST_F(SavedCheckpoints, OfNoStepAreOfEpoch0) {
  EXPECT_EQ(train({.dirpath = folder_, .filename = "{epoch}-{step}"}, {.max_epochs = 0}), "");
  EXPECT_THAT(names(), ElementsAre("0-0"));
}

TEST_F(SavedCheckpoints, AreMadeWhereAStepEndsAWindow) {
  const ModelCheckpointOptions every_step{.dirpath = folder_,
                                          .filename = "{step}",
                                          .save_top_k = -1,
                                          .save_last = false,
                                          .every_n_epochs = 0,
                                          .every_n_train_steps = 1};
  EXPECT_EQ(train(every_step, {.max_epochs = 2, .accumulate_grad_batches = 2}), "");
  EXPECT_THAT(names(), UnorderedElementsAre("1", "2"));
}

TEST_F(SavedCheckpoints, AreNotMadeOfAnErrorBeforeTheFirstStep) {
  EXPECT_THAT(train({.dirpath = folder_}, {}, /*throws_at=*/1), HasSubstr("training_step failed"));
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_THAT(train({.dirpath = folder_, .filename = "{step}"}, {}, /*throws_at=*/2),
              HasSubstr("training_step"));
  EXPECT_THAT(names(), ElementsAre("1"));
}

TEST_F(SavedCheckpoints, ANameMayHaveABraceAnd180Bytes) {
  EXPECT_EQ(train({.dirpath = folder_, .filename = "a{step}-{epoch"}, {}), "");
  EXPECT_THAT(names(), ElementsAre("a2-{epoch"));
  const auto error = [](size_t bytes) {
    return error_of([&] { ModelCheckpoint callback({.filename = std::string(bytes, 'x')}); });
  };
  EXPECT_EQ(error(180), "no error");
  EXPECT_THAT(error(181), HasSubstr("gives names of 181 bytes; leave it at 180"));
}

TEST_F(SavedCheckpoints, TheNewestTakesTheNameOfTheOneThatItReplaces) {
  for (const char* mode : {"min", "max"}) {
    fit({.dirpath = folder_ / mode, .filename = "x", .mode = mode, .save_last = false}, {1, 2});
    EXPECT_THAT(names(mode), ElementsAre("x"));
  }
}

TEST_F(SavedCheckpoints, AMonitorThatNoValidationLogsIsRefusedAfterTheFirst) {
  Logs task;
  task.values = {1, 2};
  ListLoader loader = loader_of({1, 2}), val = loader_of({1});
  const auto checkpoints =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_, .monitor = "n"});
  Trainer trainer({.device = "cpu",
                   .max_epochs = 4,
                   .check_val_every_n_epoch = 2,
                   .num_sanity_val_steps = 0,
                   .callbacks = {checkpoints}});
  EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader, &val); }),
              HasSubstr("the monitor 'n' was not logged"));
  EXPECT_EQ(trainer.progress().steps, 4) << "the first epoch was not validated";
}

TEST_F(SavedCheckpoints, AreWrittenOnAThreadOfTheirOwnIfConfigured) {
  struct Looks final : Logger {
    std::string name() const override { return "looks"; }
    void log_metrics(MetricValues, int64_t) override {}
    void log_hyperparams(const Hyperparameters&) override {}
    void save() override { saves_in = std::this_thread::get_id(); }
    std::thread::id saves_in;
  };
  for (const bool async : {false, true}) {
    const auto looks = std::make_shared<Looks>();
    train({.dirpath = folder_ / std::to_string(async), .async = async}, {.loggers = {looks}});
    EXPECT_NE(looks->saves_in, std::thread::id());
    EXPECT_EQ(looks->saves_in == std::this_thread::get_id(), !async);
  }
}

TEST_F(SavedCheckpoints, NothingOfTheFolderStaysOpenAfterTheRun) {
  const auto open_in_folder = [&] {
    int count = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd"))
      count += fs::read_symlink(entry.path(), error).string().starts_with(folder_.string());
    return count;
  };
  OneWeight task;
  ListLoader loader = loader_of({1, 2});
  const auto checkpoints = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_});
  Trainer trainer({.device = "cpu", .callbacks = {checkpoints}});
  trainer.fit(task, loader);
  EXPECT_EQ(open_in_folder(), 0);
}

TEST_F(SavedCheckpoints, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(folder_ / "file") << "no folder";
  EXPECT_THAT(train({.dirpath = folder_ / "file" / "run"}, {}),
              HasSubstr("ModelCheckpoint: cannot create the folder '" + (folder_ / "file" / "run").string()));
}

TEST_F(SavedCheckpoints, LeftoversOfAKilledRunAreRemoved) {
  const fs::path left = folder_ / ".5.tmp-4194305-0";
  fs::create_directories(left);
  train({.dirpath = folder_}, {});
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(SavedCheckpoints, NothingIsSavedOfARunThatFailsWhereItIsResumed) {
  struct Throws final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step == 1) throw std::runtime_error("first");
    }
    void on_train_start(Trainer& trainer) override {
      if (trainer.progress().steps > 0) throw std::runtime_error("second");
    }
  };
  train({.dirpath = folder_ / "whole", .filename = "{step}"}, {});
  OneWeight task;
  ListLoader loader = loader_of({1, 2});
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder_ / "mine", .filename = "{step}", .save_on_exception = true});
  Trainer trainer({.device = "cpu", .max_epochs = 2, .callbacks = {std::make_shared<Throws>(), checkpoints}});
  EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader); }), HasSubstr("first"));
  EXPECT_THAT(names("mine"), ElementsAre("1"));
  EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader, nullptr, folder_ / "whole"); }),
              HasSubstr("second"));
  EXPECT_THAT(names("mine"), ElementsAre("1"));
}

TEST_F(SavedCheckpoints, ARunThatResumesAtItsEndKnowsTheBestAndWritesNothing) {
  const ModelCheckpointOptions three{
      .dirpath = folder_, .filename = "{epoch}", .monitor = "m", .save_top_k = 3};
  fit(three, {0.1, 0.2, 0.3});
  const int64_t written = read_manifest(folder_ / "2").written_unix_ms;
  fs::remove_all(folder_ / "0");
  testing::internal::CaptureStderr();
  const auto checkpoints = resume(folder_, three, 3, {});
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(checkpoints->best_model_path().filename(), "1");
  EXPECT_EQ(checkpoints->best_model_score(), 0.2);
  EXPECT_EQ(read_manifest(folder_ / "2").written_unix_ms, written);
}

TEST_F(SavedCheckpoints, OfEqualScoresTheNewestIsTheBestInAResumedRunToo) {
  const ModelCheckpointOptions all{
      .dirpath = folder_, .filename = "{epoch}", .monitor = "m", .save_top_k = -1};
  fit(all, {0.5, 0.5});
  EXPECT_EQ(resume(folder_, all, 3, {0.5})->best_model_path().filename(), "2");
}

TEST_F(SavedCheckpoints, OneNewerCheckpointIsReported) {
  const ModelCheckpointOptions all{.dirpath = folder_, .filename = "{epoch}", .save_top_k = -1};
  fit(all, {3, 2});
  testing::internal::CaptureStderr();
  resume(folder_ / "0", all, 1, {});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("holds 1 checkpoint of this run with more than the 2 steps"));
}

TEST_F(SavedCheckpoints, AStateIsReadWithWhatItSaysOfTheBest) {
  const auto state = [](int64_t last_step) {
    return StateDict{{"best", StateDict{{"a", StateDict{{"score", 2.0}, {"order", int64_t{0}}}},
                                        {"b", StateDict{{"score", 1.0}, {"order", int64_t{1}}}}}},
                     {"run", "x"},
                     {"last_model", "b"},
                     {"last_step", last_step},
                     {"last_filename", "b"},
                     {"order", int64_t{2}}};
  };
  ModelCheckpoint checkpoints({.dirpath = folder_, .monitor = "m"});
  checkpoints.load_state_dict(StateReader(state(-1)));
  EXPECT_EQ(checkpoints.best_model_path(), folder_ / "b");
  EXPECT_EQ(checkpoints.best_model_score(), 1);
  EXPECT_EQ(checkpoints.last_model_path(), folder_ / "b");
  EXPECT_THAT(error_of([&] { checkpoints.load_state_dict(StateReader(state(-2))); }), HasSubstr("last_step"));
}

TEST_F(SavedCheckpoints, ARunIsResumedThoughOneCallbackHasNotSavedYet) {
  for (const char* from : {"", "often", "often"}) {
    const auto often = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / "often", .filename = "{step}"});
    const auto seldom = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
        .dirpath = folder_ / "seldom", .monitor = "val_x", .save_last = false, .every_n_epochs = 100});
    OneWeight task;
    ListLoader loader = loader_of({1, 2});
    const std::string start(from);
    const int64_t epochs = start.empty() ? 1 : names("often").front() == "2" ? 2 : 3;
    Trainer trainer({.device = "cpu", .max_epochs = epochs, .callbacks = {often, seldom}});
    EXPECT_EQ(what_a_fit_throws(
                  [&] { trainer.fit(task, loader, nullptr, start.empty() ? fs::path() : folder_ / start); }),
              "");
    EXPECT_EQ(trainer.progress().steps, 2 * epochs);
  }
}

TEST_F(SavedCheckpoints, TheEndOfTheLastEpochIsWrittenOnce) {
  for (const char* monitor : {"", "m"}) {
    const auto logger = std::make_shared<RecordingLogger>();
    Logs task;
    task.values = {1};
    ListLoader loader = loader_of({1, 2}), val = loader_of({1});
    const auto checkpoints = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / "run", .monitor = monitor, .async = false});
    Trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {checkpoints}, .loggers = {logger}})
        .fit(task, loader, &val);
    EXPECT_EQ(std::count(logger->lines.begin(), logger->lines.end(), "save"), 1)
        << "each checkpoint saves the logs first";
  }
}

TEST_F(SavedCheckpoints, ATimeIntervalBeginsWithTheOneBefore) {
  static constexpr milliseconds kInterval(100);
  struct Waits final : Callback {
    void on_train_batch_start(Trainer&, const Batch&, int64_t index) override {
      if (index == 0) std::this_thread::sleep_for(kInterval);
    }
  };
  const auto start = std::chrono::steady_clock::now();
  OneWeight task;
  ListLoader loader = loader_of(std::vector<float>(20, 1));
  const auto checkpoints =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_,
                                                               .filename = "{step}",
                                                               .save_top_k = -1,
                                                               .save_last = false,
                                                               .every_n_epochs = 0,
                                                               .train_time_interval = kInterval,
                                                               .async = false});
  Trainer({.device = "cpu", .callbacks = {std::make_shared<Waits>(), checkpoints}}).fit(task, loader);
  const auto saved = static_cast<int64_t>(names().size());
  EXPECT_GE(saved, 1);
  EXPECT_LE(saved * kInterval, std::chrono::steady_clock::now() - start) << saved << " have taken less time";
}

}  // namespace
}  // namespace mantissa::saved_checkpoints_test
