// Tests what a ModelCheckpoint leaves where a checkpoint cannot be written or removed, or where its folder is lost.
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <torch/torch.h>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/file_size_limit_internal.h"
#include "mantissa/trainer/callbacks/kept_checkpoints_test_support_internal.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::failed_checkpoints_test {
namespace {

namespace fs = std::filesystem;
using namespace kept_checkpoints;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using FailedCheckpoints = InFolderOfCheckpoints;

/// Puts a file in the way of a checkpoint.
struct InTheWay final : Callback {
  explicit InTheWay(fs::path at) : file(std::move(at)) {}
  void on_train_start(Trainer&) override { std::ofstream(file) << "in the way"; }
  fs::path file;
};

TEST_F(FailedCheckpoints, TheLastThatCouldNotBeWrittenIsNeitherTheNewestNorTheBest) {
  for (const bool async : {false, true})
    for (const char* filename : {"{step}", "{step}-{m:.1f}"}) {
      const bool has_score = std::string(filename) != "{step}";
      Logs task;
      task.values = {0.5, 0.3, 0.1};
      ListLoader loader = loader_of({1, 2}), val = loader_of({1});
      const auto checkpoints = std::make_shared<ModelCheckpoint>(
          ModelCheckpointOptions{.dirpath = folder_, .filename = filename, .monitor = "m", .async = async});
      Trainer trainer(
          {.device = "cpu",
           .max_epochs = 3,
           .num_sanity_val_steps = 0,
           .callbacks = {std::make_shared<InTheWay>(folder_ / (has_score ? "6-0.1" : "6")), checkpoints}});
      testing::internal::CaptureStderr();
      EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader, &val); }),
                  HasSubstr("the run's last checkpoint could not be written"));
      testing::internal::GetCapturedStderr();
      const std::string kept = has_score ? "4-0.3" : "4";
      EXPECT_THAT(names(), ElementsAre(kept));
      EXPECT_EQ(checkpoints->last_model_path().filename(), kept);
      EXPECT_EQ(checkpoints->best_model_path().filename(), kept);
      EXPECT_EQ(checkpoints->best_model_score(), 0.3);
      fs::remove_all(folder_);
    }
}

TEST_F(FailedCheckpoints, OneThatCannotBeRemovedUntilTheEndIsRemovedThenOrReported) {
  // Somebody replaces the first checkpoint by a link, and may put it back after training.
  struct Moves final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step != 3) return;
      fs::rename(file, file.string() + "-elsewhere");
      fs::create_symlink(file.string() + "-elsewhere", file);
    }
    void on_fit_end(Trainer&, const FitResult&) override {
      if (!puts_back) return;
      fs::remove(file);
      fs::rename(file.string() + "-elsewhere", file);
    }
    fs::path file;
    bool puts_back = false;
  };
  for (const bool puts_back : {true, false}) {
    const auto moves = std::make_shared<Moves>();
    moves->file = folder_ / "2";
    moves->puts_back = puts_back;
    Logs task;
    task.values = {0.5, 0.3};
    ListLoader loader = loader_of({1, 2}), val = loader_of({1});
    const auto checkpoints = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}", .monitor = "m", .async = false});
    testing::internal::CaptureStderr();
    Trainer({.device = "cpu", .max_epochs = 2, .num_sanity_val_steps = 0, .callbacks = {moves, checkpoints}})
        .fit(task, loader, &val);
    const std::string warnings = testing::internal::GetCapturedStderr();
    const auto reported = HasSubstr("an older checkpoint could not be removed: ");
    if (puts_back) {
      EXPECT_THAT(warnings, Not(reported));
      EXPECT_FALSE(fs::exists(folder_ / "2"));
    } else {
      EXPECT_THAT(warnings, reported);
    }
    fs::remove_all(folder_);
  }
}

TEST_F(FailedCheckpoints, AFitAfterOneThatFailedInALostFolderIsNotToldOfIt) {
  struct Fails final : OneWeight, Stateful {
    StateDict state_dict() const override {
      if (fails) throw std::bad_alloc();
      return {};
    }
    void load_state_dict(const StateReader&) override {}
    bool fails = false;
  } task;
  struct Takes final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch&) override {
      if (takes) fs::rename(folder, folder.string() + "-taken");
      takes = false;
    }
    fs::path folder;
    bool takes = true;
  };
  const auto takes = std::make_shared<Takes>();
  takes->folder = folder_ / "run" / "checkpoints";
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = takes->folder, .filename = "{step}", .async = false});
  ListLoader loader = loader_of({1, 2});
  Trainer trainer({.device = "cpu", .callbacks = {takes, checkpoints}});
  task.fails = true;
  testing::internal::CaptureStderr();
  EXPECT_THROW(trainer.fit(task, loader), std::bad_alloc);
  testing::internal::GetCapturedStderr();
  task.fails = false;
  EXPECT_EQ(what_a_fit_throws([&] { trainer.fit(task, loader); }), "");
  EXPECT_EQ(checkpoints->last_model_path(), takes->folder / "2");
}

TEST_F(FailedCheckpoints, NoBestHasNoScore) {
  struct Moves final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step == 3) fs::rename(from, from.string() + "-moved");
    }
    fs::path from;
  };
  const auto moves = std::make_shared<Moves>();
  moves->from = folder_ / "run";
  const auto checkpoints =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / "run",
                                                               .filename = "{step}",
                                                               .monitor = "m",
                                                               .every_n_train_steps = 1,
                                                               .async = false});
  Logs task;
  task.values = {1, 2, 3};
  ListLoader loader = loader_of({1, 2}), val = loader_of({1});
  Trainer trainer(
      {.device = "cpu", .max_epochs = 3, .num_sanity_val_steps = 0, .callbacks = {moves, checkpoints}});
  EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader, &val); }),
              HasSubstr("was removed, moved or replaced"));
  EXPECT_TRUE(checkpoints->best_model_path().empty());
  EXPECT_EQ(checkpoints->best_model_score(), std::nullopt);
}

TEST_F(FailedCheckpoints, WhatAFailedWriteWouldHaveReplacedStaysAndTheRestGoes) {
  // Somebody replaces the first checkpoint by a link until training has ended. The last one finds a file in its
  // way.
  struct Spoils final : Callback {
    explicit Spoils(fs::path in) : folder(std::move(in)), elsewhere(folder / "2-elsewhere") {}
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step == 3) {
        fs::rename(folder / "2", elsewhere);
        fs::create_symlink(elsewhere, folder / "2");
      } else if (batch.global_step == 7) {
        std::ofstream(folder / "8") << "in the way";
      }
    }
    void on_fit_end(Trainer&, const FitResult&) override {
      fs::remove(folder / "2");
      fs::rename(elsewhere, folder / "2");
    }
    fs::path folder, elsewhere;
  };
  Logs task;
  task.values = {0.5, 0.1, 0.3, 0.4};
  ListLoader loader = loader_of({1, 2}), val = loader_of({1});
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}", .monitor = "m", .async = false});
  Trainer trainer({.device = "cpu",
                   .max_epochs = 4,
                   .num_sanity_val_steps = 0,
                   .callbacks = {std::make_shared<Spoils>(folder_), checkpoints}});
  testing::internal::CaptureStderr();
  EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader, &val); }),
              HasSubstr("the run's last checkpoint could not be written"));
  testing::internal::GetCapturedStderr();
  EXPECT_THAT(names(), ElementsAre("6", "4")) << "the newest and the best";
}

TEST_F(FailedCheckpoints, OneThatCouldNotBeWrittenIsTriedAgainAtTheEnd) {
  struct Clears final : Callback {
    explicit Clears(fs::path at) : file(std::move(at)) {}
    void on_train_end(Trainer&) override { fs::remove(file); }
    fs::path file;
  };
  testing::internal::CaptureStderr();
  const std::string error = train(
      {.dirpath = folder_, .filename = "{step}", .async = false},
      {.callbacks = {std::make_shared<InTheWay>(folder_ / "2"), std::make_shared<Clears>(folder_ / "2")}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("training continues without it"));
  EXPECT_EQ(error, "");
  EXPECT_THAT(names(), ElementsAre("2"));
}

TEST_F(FailedCheckpoints, AFolderLostAtTheEndOfTrainingIsReplacedAndLocked) {
  struct Loses final : Callback {
    void on_train_end(Trainer&) override { fs::rename(folder, folder.string() + "-moved"); }
    void on_exception(Trainer&, const std::exception_ptr&) override {
      lock_error = error_of([&] { FolderLock lock(folder); });
    }
    fs::path folder;
    std::string lock_error;
  };
  for (const bool save_last : {false, true}) {
    const auto loses = std::make_shared<Loses>();
    loses->folder = folder_ / "run";
    const ModelCheckpointOptions options{
        .dirpath = loses->folder, .filename = "{step}", .save_last = save_last, .async = false};
    train(options, {});  // another run's checkpoint takes the name
    const auto checkpoints = std::make_shared<ModelCheckpoint>(options);
    OneWeight task;
    ListLoader loader = loader_of({1, 2});
    Trainer trainer({.device = "cpu", .callbacks = {loses, checkpoints}});
    testing::internal::CaptureStderr();
    EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader); }),
                HasSubstr("was removed, moved or replaced"));
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(checkpoints->last_model_path(), loses->folder / "2") << "the name is free in the new folder";
    EXPECT_THAT(loses->lock_error, HasSubstr("is in use by this process"));
    fs::remove_all(folder_);
  }
}

TEST_F(FailedCheckpoints, WithoutRoomInAnotherFolderTheRunGoesOnToItsEnd) {
  struct Loses final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step != 3) return;
      fs::rename(folder, folder.string() + "-moved");
      limit.emplace(1000);  // enough for a lock and the warnings, and too little for a manifest
    }
    void on_train_end(Trainer&) override {
      if (makes_room) limit.reset();
    }
    fs::path folder;
    bool makes_room = false;
    std::optional<FileSizeLimit> limit;
  };
  for (const bool async : {false, true})
    for (const bool makes_room : {false, true}) {
      const auto loses = std::make_shared<Loses>();
      loses->folder = folder_ / "run";
      loses->makes_room = makes_room;
      const auto checkpoints = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
          .dirpath = loses->folder, .filename = "{step}", .every_n_train_steps = 1, .async = async});
      OneWeight task;
      ListLoader loader = loader_of({1, 2});
      Trainer trainer({.device = "cpu", .max_epochs = 3, .callbacks = {loses, checkpoints}});
      testing::internal::CaptureStderr();
      const std::string error = what_a_fit_throws([&] { trainer.fit(task, loader); });
      loses->limit.reset();
      testing::internal::GetCapturedStderr();
      EXPECT_EQ(trainer.progress().steps, 6) << error;
      EXPECT_THAT(error, HasSubstr(makes_room ? "was removed, moved or replaced"
                                              : "the run's last checkpoint could not be written"));
      EXPECT_EQ(checkpoints->last_model_path(), makes_room ? loses->folder / "6" : fs::path());
      fs::remove_all(folder_);
    }
}

/// Does something on the thread that writes a checkpoint, before it is written.
struct BeforeTheWrite final : Logger {
  explicit BeforeTheWrite(std::function<void()> what) : does(std::move(what)) {}
  std::string name() const override { return "before"; }
  void log_metrics(MetricValues, int64_t) override {}
  void log_hyperparams(const Hyperparameters&) override {}
  void save() override { does(); }
  std::function<void()> does;
};

// The pauses let training go on while a checkpoint is written. Without them the tests pass, too.
TEST_F(FailedCheckpoints, AFolderLostWhileTheLastOneIsWrittenIsReplaced) {
  const fs::path folder = folder_ / "run";
  bool is_lost = false;
  const auto loses = std::make_shared<BeforeTheWrite>([&] {
    if (std::exchange(is_lost, true)) return;
    std::this_thread::sleep_for(milliseconds(100));
    fs::rename(folder, folder.string() + "-moved");
  });
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder, .filename = "{step}", .save_last = false});
  OneWeight task;
  ListLoader loader = loader_of({1, 2});
  Trainer trainer({.device = "cpu", .callbacks = {checkpoints}, .loggers = {loses}});
  testing::internal::CaptureStderr();
  EXPECT_THAT(what_a_fit_throws([&] { trainer.fit(task, loader); }),
              HasSubstr("was removed, moved or replaced"));
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(checkpoints->last_model_path(), checkpoints->rescued_dirpath() / "2");
  EXPECT_TRUE(fs::exists(checkpoints->last_model_path() / "manifest.json"));
}

TEST_F(FailedCheckpoints, AWriteThatFailsSlowlyIsUndoneBeforeTheNext) {
  const auto slow = std::make_shared<BeforeTheWrite>([] { std::this_thread::sleep_for(milliseconds(100)); });
  const auto checkpoints =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_,
                                                               .filename = "{step}",
                                                               .save_last = false,
                                                               .every_n_epochs = 0,
                                                               .every_n_train_steps = 1});
  OneWeight task;
  ListLoader loader = loader_of({1, 2});
  Trainer trainer({.device = "cpu",
                   .callbacks = {std::make_shared<InTheWay>(folder_ / "1"), checkpoints},
                   .loggers = {slow}});
  testing::internal::CaptureStderr();
  EXPECT_EQ(what_a_fit_throws([&] { trainer.fit(task, loader); }), "");
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(checkpoints->last_model_path(), folder_ / "2");
  EXPECT_EQ(checkpoints->best_model_path(), folder_ / "2");
}

TEST_F(FailedCheckpoints, ABestThatCouldNotBeReplacedStaysOne) {
  struct Fills final : Callback {
    void on_epoch_end(Trainer&, int64_t, int64_t, const Metrics&) override {
      limit.emplace(1000);  // enough for the warnings, and too little for a manifest
    }
    std::optional<FileSizeLimit> limit;
  };
  const auto fills = std::make_shared<Fills>();
  const auto checkpoints = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
      .dirpath = folder_, .filename = "{step}", .every_n_train_steps = 1, .async = false});
  OneWeight task;
  ListLoader loader = loader_of({1, 2});
  Trainer trainer({.device = "cpu", .callbacks = {fills, checkpoints}});
  testing::internal::CaptureStderr();
  const std::string error = what_a_fit_throws([&] { trainer.fit(task, loader); });
  fills->limit.reset();
  testing::internal::GetCapturedStderr();
  EXPECT_THAT(error, HasSubstr("the run's last checkpoint could not be written"));
  EXPECT_THAT(names(), ElementsAre("2")) << "as the batch left it; the epoch's end has the same name";
  EXPECT_EQ(checkpoints->best_model_path(), folder_ / "2");
}

}  // namespace
}  // namespace mantissa::failed_checkpoints_test
