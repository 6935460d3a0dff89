#include "mantissa/trainer/callbacks/model_checkpoint.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/data/dataset.h"
#include "mantissa/data/loader.h"
#include "mantissa/data/transform.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/manifest.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/precision_monitor.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/loop/checkpoint_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::model_checkpoint_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class ModelCheckpointFiles : public InFolderOfCheckpoints {};

/// Has dropout, batch norm and a schedule: everything that a resumed run could get wrong.
class Net : public Task {
 public:
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    auto optimizer = std::make_shared<FusedAdamW>(net->parameters(), AdamWOptions(1e-2).eps(1e-4),
                                                  FusedOptions{.stochastic_rounding = true});
    auto schedule = std::make_shared<WarmupCosineLR>(
        *optimizer, WarmupCosineOptions{.warmup_steps = 2, .total_steps = 40});
    return {{optimizer, schedule, OptimizerConfig::Interval::kStep}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    if (dies_at-- == 0) throw std::runtime_error("training_step failed");
    return (net->forward(batch.data) - batch.target.to(batch.data.dtype())).square().mean();
  }
  void validation_step(const Batch& batch, int64_t) override {
    log("val_loss", (net->forward(batch.data) - batch.target.to(batch.data.dtype())).square().mean());
  }
  torch::nn::Sequential net{torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.5),
                            torch::nn::Linear(8, 1)};
  int64_t dies_at = -1;
};

struct Job {
  std::string precision = "32-true";
  std::filesystem::path folder;
  int64_t max_steps = -1, max_epochs = 3, every_n_train_steps = 0;
  std::filesystem::path from = {};
  int64_t dies_at = -1;
  bool async = true;
  int64_t num_workers = 0;
};

/// Runs in a loader's threads, where the default dtype may be that of any mode.
Transform noise() {
  return per_sample([](Batch sample, const at::Generator& generator) {
    sample.data = sample.data + at::randn({6}, generator, at::kFloat) * 0.1;
    return sample;
  });
}

/// Trains Net on 22 samples in batches of 4 (6 per epoch), with two batches per step.
FitResult run(const Job& job) {
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({22, 6});
  const auto data = std::make_shared<TensorDataset>(x, x.sum(1, /*keepdim=*/true));
  Net task;
  task.dies_at = job.dies_at;
  if (!job.from.empty()) torch::manual_seed(99);  // a resumed run must use the checkpoint's states
  DataLoader train(data, {.batch_size = 4,
                          .shuffle = true,
                          .seed = 5,
                          .num_workers = job.num_workers,
                          .prefetch_factor = 1,
                          .transform = noise()}),
      val(data, {.batch_size = 8, .num_workers = job.num_workers});
  Trainer trainer(
      {.precision = job.precision,
       .device = "cpu",
       .max_epochs = job.max_epochs,
       .max_steps = job.max_steps,
       .accumulate_grad_batches = 2,
       .gradient_clip_val = 1,
       .callbacks = {std::make_shared<ModelCheckpoint>(
                         ModelCheckpointOptions{.dirpath = job.folder,
                                                .save_top_k = -1,
                                                .every_n_train_steps = job.every_n_train_steps,
                                                .async = job.async}),
                     std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.9}}),
                     std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_loss"}),
                     std::make_shared<PrecisionMonitor>(PrecisionMonitorOptions{.every_n_steps = 2})}});
  return trainer.fit(task, train, &val, job.from);
}

/// Everything in a checkpoint except the time, the kernels that the process had chosen by then, and what its
/// callbacks store about files.
StateDict comparable(const std::filesystem::path& path) {
  Checkpoint checkpoint = load_checkpoint(path);
  StateDict weights;
  for (const auto& [name, tensor] : checkpoint.weights) weights.emplace(name, tensor);
  checkpoint.state.erase("seconds");
  checkpoint.state.erase("cpu_kernels");
  checkpoint.state.at("callbacks").get_if<StateDict>()->erase("mantissa::ModelCheckpoint");
  checkpoint.state.emplace("weights", weights);
  return checkpoint.state;
}

class EveryMode : public ModelCheckpointFiles, public testing::WithParamInterface<std::string> {};

TEST_P(EveryMode, AResumedRunIsTheUninterruptedOne) {
  const std::string mode = GetParam();
  run({.precision = mode, .folder = folder_ / "whole", .every_n_train_steps = 1});
  const std::string last = "epoch=2-step=9";
  // The checkpoint lies in the middle of an epoch, at the end of one, or on an epoch's last step.
  for (const int64_t steps : {1, 2, 3, 4, 6, 8}) {
    const std::string half = "half" + std::to_string(steps), rest = "rest" + std::to_string(steps);
    run({.precision = mode, .folder = folder_ / half, .max_steps = steps});
    run({.precision = mode, .folder = folder_ / rest, .every_n_train_steps = 1, .from = folder_ / half});
    EXPECT_EQ(difference(comparable(folder_ / "whole" / last), comparable(folder_ / rest / last)), "")
        << mode << " after " << steps << " steps";
  }
}

TEST_P(EveryMode, AResumedRunIsTheUninterruptedOneWhateverTheWorkers) {
  const std::string mode = GetParam();
  run({.precision = mode, .folder = folder_ / "whole"});
  // The run ends in the middle of an epoch or at its end, while batches have been read ahead.
  for (const int64_t steps : {1, 3, 5}) {
    const std::string half = "half" + std::to_string(steps), rest = "rest" + std::to_string(steps);
    run({.precision = mode, .folder = folder_ / half, .max_steps = steps, .num_workers = 3});
    run({.precision = mode, .folder = folder_ / rest, .from = folder_ / half, .num_workers = 2});
    EXPECT_EQ(difference(comparable(folder_ / "whole" / "epoch=2-step=9"),
                         comparable(folder_ / rest / "epoch=2-step=9")),
              "")
        << mode << " after " << steps << " steps";
  }
}

TEST_P(EveryMode, AResumedRunContinuesFromItsNewestCheckpoint) {
  const std::string mode = GetParam();
  run({.precision = mode, .folder = folder_ / "whole"});
  EXPECT_THROW(run({.precision = mode,
                    .folder = folder_ / "died",
                    .every_n_train_steps = 1,
                    .dies_at = 8,
                    .num_workers = 2}),
               std::runtime_error);
  run({.precision = mode, .folder = folder_ / "rest", .from = folder_ / "died"});
  EXPECT_EQ(difference(comparable(folder_ / "whole" / "epoch=2-step=9"),
                       comparable(folder_ / "rest" / "epoch=2-step=9")),
            "")
      << mode;
}

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const Mode& mode : modes()) names.push_back(mode.name);
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Modes, EveryMode, testing::ValuesIn(mode_names()), test_name);

TEST_F(ModelCheckpointFiles, ADamagedNewestCheckpointIsReportedAndTheOneBeforeTaken) {
  run({.folder = folder_ / "whole", .every_n_train_steps = 1});
  run({.folder = folder_ / "half", .max_steps = 5, .every_n_train_steps = 1});
  std::filesystem::resize_file(folder_ / "half" / names("half").front() / "weights.safetensors", 20);
  testing::internal::CaptureStderr();
  run({.folder = folder_ / "rest", .every_n_train_steps = 1, .from = folder_ / "half"});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("that is or may be newer cannot be used"));
  EXPECT_EQ(difference(comparable(folder_ / "whole" / "epoch=2-step=9"),
                       comparable(folder_ / "rest" / "epoch=2-step=9")),
            "");
}

TEST_F(ModelCheckpointFiles, AnotherPrecisionTakesTheCheckpointAndSaysWhatIsLost) {
  run({.precision = "16-mixed", .folder = folder_ / "half", .max_steps = 5});
  testing::internal::CaptureStderr();
  run({.precision = "bf16-true", .folder = folder_ / "rest", .from = folder_ / "half"});
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("rounded from Float to BFloat16"));
  EXPECT_THAT(warnings, HasSubstr("of 16-mixed in bf16-true: its loss scale is dropped"));
  EXPECT_EQ(names("rest").front(), "epoch=2-step=9");
  testing::internal::CaptureStderr();
  run({.precision = "16-mixed", .folder = folder_ / "again", .max_epochs = 4, .from = folder_ / "rest"});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("it has no loss scale, so the scale starts at its initial value"));
}

TEST_F(ModelCheckpointFiles, MasterWeightsAreTheWeightsOfAModeWithoutThem) {
  run({.precision = "O2", .folder = folder_ / "half", .max_steps = 4});
  testing::internal::CaptureStderr();
  run({.precision = "32-true", .folder = folder_ / "rest", .max_steps = 4, .from = folder_ / "half"});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("master weights")));
  const Checkpoint before = load_checkpoint(folder_ / "half" / names("half").front()),
                   after = load_checkpoint(folder_ / "rest" / names("rest").front());
  // A checkpoint's own weights are the averaged ones.
  const auto trained = [](const Checkpoint& checkpoint, const std::string& name) {
    return StateReader(checkpoint.state)
        .at("callbacks")
        .at("mantissa::EMAWeightAveraging")
        .at("trained_weights")
        .at(name)
        .to_tensor();
  };
  const auto masters = master_weights_of(StateReader(before.state).at("precision").at("state"));
  ASSERT_GT(masters.size(), 0U);
  int64_t finer = 0;
  for (const auto& [name, master] : masters) {  // batch norm is float32 itself
    EXPECT_TRUE(trained(after, name).equal(master)) << name;
    finer += !trained(before, name).to(at::kFloat).equal(master);
  }
  EXPECT_GT(finer, 0) << "the master weights were no better than the weights";
}

TEST_F(ModelCheckpointFiles, WhatACheckpointLacksStartsAnewAndIsReported) {
  run({.folder = folder_ / "whole", .max_steps = 4});
  const std::filesystem::path saved = folder_ / "whole" / names("whole").front();
  Checkpoint checkpoint = load_checkpoint(saved);
  checkpoint.state.erase("rng");
  checkpoint.state.at("callbacks") = StateDict();
  save_checkpoint(folder_ / "foreign", checkpoint);
  testing::internal::CaptureStderr();
  run({.folder = folder_ / "rest", .from = folder_ / "foreign"});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("no state for the callback mantissa::EMAWeightAveraging, which starts anew"),
                    HasSubstr("no state for the sequence of random numbers, which starts anew")));
}

TEST_F(ModelCheckpointFiles, TwoRunsInOneFolderAreOneTooMany) {
  struct Nested final : Callback {
    explicit Nested(std::filesystem::path in) : folder_(std::move(in)) {}
    void on_train_start(Trainer&) override {
      error = error_of([&] { run({.folder = folder_}); });
    }
    std::filesystem::path folder_;
    std::string error;
  };
  const auto nested = std::make_shared<Nested>(folder_);
  OneWeight task;
  ListLoader train = loader_of({1});
  Trainer(
      {.device = "cpu",
       .callbacks = {nested, std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_})}})
      .fit(task, train);
  EXPECT_THAT(nested->error, HasSubstr(folder_.string()));
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(run({.folder = folder_, .max_epochs = 1}).steps, 3) << "and free again";
}

TEST_F(ModelCheckpointFiles, AFolderThatCannotBeWrittenEndsTheRunOnlyAtItsEnd) {
  for (const bool async : {false, true}) {
    struct Spoils final : Callback {
      explicit Spoils(std::filesystem::path in) : folder_(std::move(in)) {}
      void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
        ++batches;
        // A file blocks the checkpoint's path, even for root.
        if (batch.global_step == 1) std::ofstream(folder_ / "2") << "in the way";
        if (batch.global_step == 3 && heals) std::filesystem::remove(folder_ / "2");
      }
      std::filesystem::path folder_;
      bool heals = false;
      int batches = 0;
    };
    for (const bool heals : {false, true}) {
      if (heals && async) continue;  // the writer might run only after the path is free again
      const auto spoils = std::make_shared<Spoils>(folder_);
      spoils->heals = heals;
      OneWeight task;
      ListLoader train = loader_of({1, 1});
      Trainer trainer(
          {.device = "cpu",
           .max_epochs = heals ? 2 : 1,
           .callbacks = {spoils, std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                                     .dirpath = folder_, .filename = "{step}", .async = async})}});
      testing::internal::CaptureStderr();
      const std::string error = error_of([&] { trainer.fit(task, train); });
      EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("training continues without it"));
      EXPECT_THAT(error, HasSubstr(heals ? "no error" : "last checkpoint could not be written"));
      EXPECT_EQ(spoils->batches, heals ? 4 : 2);
      std::filesystem::remove_all(folder_);
    }
  }
}

TEST_F(ModelCheckpointFiles, ALostFolderEndsTheRunWhichIsSavedElsewhere) {
  const std::filesystem::path run = folder_ / "run";
  const struct {
    std::string place;
    std::function<void()> lose;
  } cases[] = {{"run",
                [&] {
                  std::filesystem::rename(run, folder_ / "gone");
                  std::filesystem::remove_all(folder_ / "gone");
                }},
               {"run", [&] { std::filesystem::rename(run, folder_ / "archive"); }},
               {"run-rescued-1", [&] {
                  std::filesystem::rename(run, folder_ / "archive");
                  std::filesystem::create_directories(run / "checkpoints");
                }}};
  struct Loses final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      ++batches;
      if (batch.global_step == 3 && !at_end) wait_and_lose("2");
    }
    void on_train_end(Trainer&) override {
      if (at_end) wait_and_lose("4");
    }
    /// Waits until the writer has nothing left to do: the checkpoint of the epoch's end has replaced that of
    /// its last step.
    void wait_and_lose(const std::string& newest) const {
      const auto is_whole_and_alone = [&] {
        try {
          const Manifest manifest = read_manifest(folder / newest);
          if (StateReader(manifest.state).at("progress").at("batches").to_int() != 0) return false;
        } catch (const c10::Error&) {
          return false;
        }
        const std::filesystem::directory_iterator entries(folder);
        return std::distance(begin(entries), end(entries)) == 2;  // the checkpoint and the lock
      };
      while (!is_whole_and_alone()) std::this_thread::yield();
      lose();
    }
    std::filesystem::path folder;
    std::function<void()> lose;
    bool at_end = false;
    int batches = 0;
  };
  for (const auto& [place, lose] : cases)
    for (const bool async : {false, true})
      for (const bool at_end : {false, true}) {
        const auto loses = std::make_shared<Loses>();
        loses->folder = run / "checkpoints";
        loses->lose = lose;
        loses->at_end = at_end;
        const auto checkpoints = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
            .dirpath = run / "checkpoints", .filename = "{step}", .every_n_train_steps = 1, .async = async});
        OneWeight task, rest;
        ListLoader train = loader_of({1, 2});
        Trainer trainer({.device = "cpu", .max_epochs = at_end ? 2 : 100, .callbacks = {loses, checkpoints}});
        const std::string error = error_of([&] { trainer.fit(task, train); });
        const int steps = at_end ? 4 : 3;
        EXPECT_EQ(loses->batches, steps) << "it ends at the next checkpoint";
        EXPECT_EQ(checkpoints->rescued_dirpath(), folder_ / place / "checkpoints");
        EXPECT_THAT(error,
                    AllOf(HasSubstr((run / "checkpoints").string() + "' was removed, moved or replaced"),
                          HasSubstr("resume from '" + checkpoints->last_model_path().string())));
        EXPECT_EQ(checkpoints->last_model_path(), folder_ / place / "checkpoints" / std::to_string(steps));
        if (place != "run") {
          EXPECT_TRUE(std::filesystem::is_empty(run / "checkpoints"));
        }
        // Nothing was lost.
        Trainer again({.device = "cpu", .max_epochs = 3});
        EXPECT_EQ(again.fit(rest, train, nullptr, checkpoints->last_model_path()).steps, 6);
        EXPECT_DOUBLE_EQ(rest.weight(), -3 * (1 + 2));
        for (const char* left : {"run", "archive", "run-rescued-1"})
          std::filesystem::remove_all(folder_ / left);
      }
}

TEST_F(ModelCheckpointFiles, AFitAfterOneThatLostItsFolderSavesWhereItWasAsked) {
  struct Takes final : Callback {
    explicit Takes(std::filesystem::path folder_) : folder(std::move(folder_)) {}
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step != 1 || std::exchange(has_taken, true)) return;
      std::filesystem::rename(folder, folder.string() + "-taken");
      std::filesystem::create_directories(folder);  // so that the run is saved elsewhere
    }
    std::filesystem::path folder;
    bool has_taken = false;
  };
  const std::filesystem::path asked = folder_ / "run" / "checkpoints";
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = asked, .filename = "{step}", .async = false});
  ListLoader train = loader_of({1, 2});
  Trainer trainer({.device = "cpu", .callbacks = {std::make_shared<Takes>(asked), checkpoints}});
  OneWeight task, next;
  EXPECT_THAT(error_of([&] { trainer.fit(task, train); }), HasSubstr("was removed, moved or replaced"));
  EXPECT_NE(checkpoints->last_model_path(), asked / "2");
  trainer.fit(next, train);
  EXPECT_EQ(checkpoints->last_model_path(), asked / "2");
  EXPECT_TRUE(checkpoints->rescued_dirpath().empty());
}

TEST_F(ModelCheckpointFiles, AfterAMoveTheBestIsNoLongerWhereItWas) {
  struct Moves final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step == 3) std::filesystem::rename(from, to);
    }
    std::filesystem::path from, to;
  };
  const auto moves = std::make_shared<Moves>();
  moves->from = folder_ / "run";
  moves->to = folder_ / "archive";
  const auto checkpoints =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / "run" / "checkpoints",
                                                               .filename = "{step}",
                                                               .monitor = "val_x",
                                                               .every_n_train_steps = 1,
                                                               .async = false});
  OneWeight task;
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  Trainer trainer(
      {.device = "cpu", .max_epochs = 100, .num_sanity_val_steps = 0, .callbacks = {moves, checkpoints}});
  EXPECT_THAT(error_of([&] { trainer.fit(task, train, &val); }), HasSubstr("was removed, moved or replaced"));
  EXPECT_EQ(checkpoints->last_model_path().filename(), "3");
  EXPECT_TRUE(checkpoints->best_model_path().empty());  // step 3 was not validated
}

TEST_F(ModelCheckpointFiles, ALinkUnderACheckpointsNameIsReplaced) {
  run({.folder = folder_ / "other", .max_epochs = 1});
  struct Links final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch&) override {
      std::filesystem::create_directory_symlink(to, at);
    }
    std::filesystem::path to, at;
  };
  const auto links = std::make_shared<Links>();
  links->to = folder_ / "other" / names("other").front();
  links->at = folder_ / "mine" / "1";
  const std::string manifest = content_of(links->to / "manifest.json");
  OneWeight task;
  ListLoader train = loader_of({1});
  Trainer({.device = "cpu",
           .max_epochs = 1,
           .callbacks = {links, std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                                    .dirpath = folder_ / "mine", .filename = "{step}"})}})
      .fit(task, train);
  EXPECT_EQ(content_of(links->to / "manifest.json"), manifest);
  EXPECT_FALSE(std::filesystem::is_symlink(links->at));
  EXPECT_TRUE(std::filesystem::exists(links->at / "manifest.json"));
}

TEST_F(ModelCheckpointFiles, ASignalLeavesACheckpointOfTheStepThatEndedTheRun) {
  OneWeight task;
  task.raise_at = 2;
  ListLoader train = loader_of({1, 2, 3, 4});
  Trainer trainer({.device = "cpu",
                   .callbacks = {std::make_shared<ModelCheckpoint>(
                       ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}"})}});
  EXPECT_EQ(trainer.fit(task, train).interrupted_by, SIGINT);
  EXPECT_THAT(names(), ElementsAre("2"));
  OneWeight rest;
  Trainer again({.device = "cpu"});
  EXPECT_EQ(again.fit(rest, train, nullptr, folder_).steps, 4);
  EXPECT_DOUBLE_EQ(rest.weight(), -1 - 2 - 3 - 4);
}

TEST_F(ModelCheckpointFiles, ResumingNothingOrSomethingElseSaysSo) {
  OneWeight task;
  ListLoader train = loader_of({1});
  Trainer trainer({.device = "cpu"});
  EXPECT_THAT(error_of([&] { trainer.fit(task, train, nullptr, folder_ / "none"); }), HasSubstr("none"));
  EXPECT_THAT(error_of([&] { trainer.fit(task, train, nullptr, folder_); }), HasSubstr(folder_.string()));
  run({.folder = folder_ / "net", .max_steps = 1});
  EXPECT_THAT(error_of([&] { trainer.fit(task, train, nullptr, folder_ / "net"); }),
              HasSubstr("does not fit the module"));
  EXPECT_THAT(error_of([&] { trainer.checkpoint(); }), HasSubstr("no fit is running"));
}

}  // namespace
}  // namespace mantissa::model_checkpoint_test
