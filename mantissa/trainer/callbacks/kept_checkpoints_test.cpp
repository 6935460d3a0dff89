// Tests which checkpoints are the best, how they are named, and how failures are handled.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/trainer/callbacks/kept_checkpoints_test_support_internal.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/loop/checkpoint_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::kept_checkpoints_test {
namespace {

using namespace kept_checkpoints;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class KeptCheckpoints : public InFolderOfCheckpoints {};

TEST_F(KeptCheckpoints, KeepsTheBestAndTheNewest) {
  std::shared_ptr<ModelCheckpoint> made;
  fit({.dirpath = folder_, .filename = "{epoch}-{m:.1f}", .monitor = "m", .save_top_k = 2}, {3, 1, NAN, 2, 5},
      &made);
  EXPECT_THAT(names(), UnorderedElementsAre("1-1.0", "3-2.0", "4-5.0"));
  EXPECT_EQ(made->best_model_path().filename(), "1-1.0");
  EXPECT_EQ(made->last_model_path().filename(), "4-5.0");
  EXPECT_EQ(made->best_model_score(), 1);
}

TEST_F(KeptCheckpoints, KeepsTheHighestAllOrTheNewestAlone) {
  fit({.dirpath = folder_ / "max", .filename = "{m}", .monitor = "m", .mode = "max", .save_last = false},
      {3, 4, 2});
  EXPECT_THAT(names("max"), ElementsAre("4"));
  fit({.dirpath = folder_ / "all", .filename = "{epoch}", .save_top_k = -1, .every_n_epochs = 2},
      {3, 4, 2, 1, 0});
  EXPECT_THAT(names("all"), ElementsAre("4", "3", "1"));
  fit({.dirpath = folder_ / "last", .filename = "{step}", .save_top_k = 0}, {3, 4, 2});
  EXPECT_THAT(names("last"), ElementsAre("6"));
}

TEST_F(KeptCheckpoints, AScoreIsOfTheWeightsItWasMeasuredOn) {
  const auto best = [&](const char* name, std::vector<double> values, ModelCheckpointOptions options) {
    Logs task;
    const int64_t epochs = 2 * static_cast<int64_t>(values.size()) - 1;
    task.values = std::move(values);
    ListLoader train = loader_of({1, 2}), val = loader_of({1});
    options.dirpath = folder_ / name;
    options.monitor = "m";
    options.filename = "{step}";
    const auto checkpoints = std::make_shared<ModelCheckpoint>(options);
    Trainer({.device = "cpu",
             .max_epochs = epochs,
             .check_val_every_n_epoch = 2,
             .num_sanity_val_steps = 0,
             .callbacks = {checkpoints}})
        .fit(task, train, &val);
    return checkpoints->best_model_path().filename().string();
  };
  // Validations run after steps 4 and 8, and at the end, after step 10. Epochs in between save, too.
  EXPECT_EQ(best("epochs", {3, 2, 1}, {.save_top_k = 3}), "10");
  EXPECT_THAT(names("epochs"), UnorderedElementsAre("4", "8", "10"));
  // A checkpoint after step 5, before the next validation, must not inherit the earlier score.
  EXPECT_EQ(best("steps", {1, 3}, {.every_n_train_steps = 1}), "4");
  EXPECT_THAT(names("steps"), UnorderedElementsAre("4", "6"));
}

TEST_F(KeptCheckpoints, AValidationInsideAnEpochSavesIfTheEpochDoes) {
  const auto steps_saved = [&](int64_t every_n_epochs) {
    const std::string name = "every" + std::to_string(every_n_epochs);
    Logs task;
    task.values = {1, 2, 3, 4, 5, 6};
    ListLoader train = loader_of({1, 2, 3, 4}), val = loader_of({1});
    const ModelCheckpointOptions options{.dirpath = folder_ / name,
                                         .filename = "{step}",
                                         .monitor = "m",
                                         .save_top_k = -1,
                                         .save_last = false,
                                         .every_n_epochs = every_n_epochs};
    Trainer({.device = "cpu",
             .max_epochs = 3,
             .val_check_interval = 2,
             .num_sanity_val_steps = 0,
             .callbacks = {std::make_shared<ModelCheckpoint>(options)}})
        .fit(task, train, &val);
    return names(name);
  };
  EXPECT_THAT(steps_saved(1), UnorderedElementsAre("2", "4", "6", "8", "10", "12"));
  EXPECT_THAT(steps_saved(3), UnorderedElementsAre("10", "12"));
  EXPECT_THAT(steps_saved(0), IsEmpty());
}

TEST_F(KeptCheckpoints, AllAreKeptUnderNamesOfTheirOwnIfSomeHaveNoScore) {
  Logs task;
  task.values = {1};
  ListLoader train = loader_of({1, 2, 3}), val = loader_of({1});
  Trainer(
      {.device = "cpu",
       .num_sanity_val_steps = 0,
       .callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_,
                                                                              .filename = "x",
                                                                              .monitor = "m",
                                                                              .save_top_k = -1,
                                                                              .every_n_train_steps = 1})}})
      .fit(task, train, &val);
  EXPECT_THAT(names(), UnorderedElementsAre("x", "x-v1", "x-v2"));
}

TEST_F(KeptCheckpoints, FastDevRunLeavesNone) {
  Logs task;
  task.values = {3};
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  const auto checkpoints =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / "none", .monitor = "x"});
  Trainer({.device = "cpu", .fast_dev_run = true, .callbacks = {checkpoints}}).fit(task, train, &val);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
}

TEST_F(KeptCheckpoints, RefusesWhatKeepsNothingOrNamesNothing) {
  const auto error = [](const ModelCheckpointOptions& options) {
    return error_of([&] { ModelCheckpoint callback(options); });
  };
  EXPECT_THAT(error({.mode = "lowest"}), HasSubstr("choose min or max"));
  EXPECT_THAT(error({.save_top_k = -2}), HasSubstr("save_top_k=-2"));
  EXPECT_THAT(error({.save_top_k = 0, .save_last = false}), HasSubstr("keeps nothing"));
  EXPECT_THAT(error({.filename = "a/b"}), HasSubstr("is not a folder name"));
  EXPECT_THAT(error({.every_n_train_steps = -1}), HasSubstr("every_n_train_steps=-1"));
  EXPECT_THAT(error_of([&] { fit({.dirpath = folder_, .monitor = "n"}, {1}); }),
              HasSubstr("the monitor 'n' was not logged; logged were m, train_loss"));
}

TEST_F(KeptCheckpoints, ANameThatAnotherOfTheBestHasGetsAVersion) {
  std::shared_ptr<ModelCheckpoint> made;
  fit({.dirpath = folder_ / "best", .filename = "best", .monitor = "m", .save_last = false}, {0.1, 0.5, 0.9},
      &made);
  EXPECT_THAT(names("best"), ElementsAre("best"));
  EXPECT_EQ(made->best_model_score(), 0.1);
  EXPECT_EQ(load_checkpoint(folder_ / "best" / "best").step, 2);
  fit({.dirpath = folder_ / "better", .filename = "best", .monitor = "m", .save_last = false},
      {0.5, 0.7, 0.1}, &made);
  EXPECT_THAT(names("better"), ElementsAre("best")) << "the one that goes leaves its name";
  EXPECT_EQ(load_checkpoint(folder_ / "better" / "best").step, 6);
  fit({.dirpath = folder_ / "two",
       .filename = "{m:.0f}",
       .monitor = "m",
       .save_top_k = 2,
       .save_last = false},
      {0.52, 0.54, 0.9}, &made);
  EXPECT_THAT(names("two"), UnorderedElementsAre("1", "1-v1"));
  EXPECT_EQ(made->best_model_score(), 0.52);
  fit({.dirpath = folder_ / "all", .filename = "x", .save_top_k = -1}, {3, 2, 1});
  EXPECT_THAT(names("all"), UnorderedElementsAre("x", "x-v1", "x-v2"));
}

TEST_F(KeptCheckpoints, NeitherAnErrorNorASignalDisplacesTheBest) {
  struct Ends final : Callback {
    explicit Ends(bool throws_) : throws(throws_) {}
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step != 3) return;
      TORCH_CHECK(!throws, "the callback failed");
      std::raise(SIGINT);
    }
    bool throws;
  };
  for (const bool throws : {false, true}) {
    Logs task;
    task.values = {0.1, 0.2};
    ListLoader train = loader_of({1, 2}), val = loader_of({1});
    const auto checkpoints = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}", .monitor = "m"});
    Trainer trainer({.device = "cpu",
                     .max_epochs = 2,
                     .num_sanity_val_steps = 0,
                     .callbacks = {std::make_shared<Ends>(throws), checkpoints}});
    const std::string error = error_of([&] { trainer.fit(task, train, &val); });
    EXPECT_EQ(error.find("the callback failed") != std::string::npos, throws) << error;
    EXPECT_THAT(names(), UnorderedElementsAre("2", "3"));
    EXPECT_EQ(checkpoints->best_model_path().filename(), "2");
    EXPECT_EQ(checkpoints->best_model_score(), 0.1);
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeptCheckpoints, OneThatCouldNotBeWrittenIsNoneOfTheBest) {
  for (const bool async : {false, true}) {
    struct InTheWay final : Callback {
      explicit InTheWay(std::filesystem::path file_) : file(std::move(file_)) {}
      void on_train_start(Trainer&) override {
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << "in the way";
      }
      std::filesystem::path file;
    };
    Logs task;
    task.values = {0.5, 0.1, 0.3};
    ListLoader train = loader_of({1, 2}), val = loader_of({1});
    const auto checkpoints = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}", .monitor = "m", .async = async});
    testing::internal::CaptureStderr();
    Trainer({.device = "cpu",
             .max_epochs = 3,
             .num_sanity_val_steps = 0,
             .callbacks = {std::make_shared<InTheWay>(folder_ / "4"), checkpoints}})
        .fit(task, train, &val);
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_THAT(warnings, HasSubstr("could not be written"));
    EXPECT_EQ(checkpoints->best_model_path().filename(), "6") << warnings;
    EXPECT_EQ(checkpoints->best_model_score(), 0.3);
    EXPECT_THAT(names(), ElementsAre("6")) << "the first one has to go with the next that is whole";
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeptCheckpoints, AnotherRunsCheckpointsInTheFolderAreReported) {
  fit({.dirpath = folder_, .filename = "{epoch}"}, {1, 2});
  testing::internal::CaptureStderr();
  fit({.dirpath = folder_, .filename = "{epoch}"}, {1});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("holds 1 checkpoint of another run"));
  EXPECT_THAT(names(), UnorderedElementsAre("1", "0")) << "another run's name is free";
  fit({.dirpath = folder_, .filename = "{epoch}"}, {1});
  EXPECT_THAT(names(), UnorderedElementsAre("1", "0", "0-v1")) << "one that is there is nobody else's";
}

TEST_F(KeptCheckpoints, OneThatCannotBeRemovedIsNoFailedWrite) {
  for (const bool async : {false, true}) {
    // Somebody has moved the first checkpoint to another disk, and left a link.
    struct Moves final : Callback {
      explicit Moves(std::filesystem::path file_) : file(std::move(file_)) {}
      void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
        if (batch.global_step != 3) return;
        while (!std::filesystem::exists(file / "manifest.json")) std::this_thread::yield();
        std::filesystem::rename(file, file.string() + "-elsewhere");
        std::filesystem::create_symlink(file.string() + "-elsewhere", file);
      }
      std::filesystem::path file;
    };
    Logs task;
    task.values = {0.5, 0.3, 0.1};
    ListLoader train = loader_of({1, 2}), val = loader_of({1});
    const auto checkpoints = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}", .monitor = "m", .async = async});
    testing::internal::CaptureStderr();
    Trainer({.device = "cpu",
             .max_epochs = 3,
             .num_sanity_val_steps = 0,
             .callbacks = {std::make_shared<Moves>(folder_ / "2"), checkpoints}})
        .fit(task, train, &val);
    const std::string warnings = testing::internal::GetCapturedStderr();
    const char* reported = "an older checkpoint could not be removed yet";
    EXPECT_THAT(warnings, HasSubstr(reported));
    EXPECT_EQ(warnings.find(reported), warnings.rfind(reported)) << "once, though it is tried twice";
    EXPECT_THAT(warnings, Not(HasSubstr("could not be written")));
    EXPECT_EQ(checkpoints->best_model_path().filename(), "6");
    EXPECT_EQ(checkpoints->best_model_score(), 0.1);
    EXPECT_EQ(checkpoints->last_model_path().filename(), "6");
    EXPECT_THAT(names(), Not(Contains("4")));
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeptCheckpoints, OneThatCouldNotBeRemovedGoesWithTheNext) {
  // Somebody replaces the first checkpoint by a link, and puts it back before the third is saved.
  struct MovesAndPutsBack final : Callback {
    explicit MovesAndPutsBack(std::filesystem::path file_) : file(std::move(file_)) {}
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      const std::string elsewhere = file.string() + "-elsewhere";
      if (batch.global_step == 3) {
        std::filesystem::rename(file, elsewhere);
        std::filesystem::create_symlink(elsewhere, file);
      } else if (batch.global_step == 5) {
        EXPECT_TRUE(std::filesystem::remove(file)) << "the link is not the run's to remove";
        std::filesystem::rename(elsewhere, file);
      } else if (batch.global_step == 7) {
        is_there_after_the_third = std::filesystem::exists(file);
      }
    }
    std::filesystem::path file;
    bool is_there_after_the_third = true;
  };
  const auto moves = std::make_shared<MovesAndPutsBack>(folder_ / "2");
  Logs task;
  task.values = {0.5, 0.3, 0.1, 0};
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}", .monitor = "m", .async = false});
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .max_epochs = 4, .num_sanity_val_steps = 0, .callbacks = {moves, checkpoints}})
      .fit(task, train, &val);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("could not be removed yet"));
  EXPECT_FALSE(moves->is_there_after_the_third);
}

TEST_F(KeptCheckpoints, OneWhoseCopyCouldNotBeMadeIsTriedAgainAtTheEnd) {
  struct Fails : Logs, Stateful {
    StateDict state_dict() const override {
      if (++saves == 2) throw std::bad_alloc();
      return {};
    }
    void load_state_dict(const StateReader&) override {}
    mutable int saves = 0;
  } task;
  task.values = {3, 2, 1};
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}", .monitor = "m"});
  Trainer trainer({.device = "cpu", .max_epochs = 3, .num_sanity_val_steps = 0, .callbacks = {checkpoints}});
  EXPECT_THROW(trainer.fit(task, train, &val), std::bad_alloc);
  EXPECT_THAT(names(), UnorderedElementsAre("4", "2")) << "saved by the exception's hook";
  EXPECT_EQ(checkpoints->last_model_path().filename(), "4");
  EXPECT_EQ(checkpoints->best_model_path().filename(), "2");
}

TEST_F(KeptCheckpoints, NothingIsSavedOfWhatCallbacksMakeOfTheWeightsAfterTraining) {
  struct Throws final : Callback {
    void on_fit_end(Trainer&, const FitResult&) override { throw std::runtime_error("on_fit_end failed"); }
  };
  OneWeight task;
  ListLoader train = loader_of({1, 2});
  const auto checkpoints = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
      .dirpath = folder_, .save_last = false, .every_n_epochs = 0, .every_n_train_steps = 5});
  Trainer trainer(
      {.device = "cpu",
       .max_epochs = 1,
       .callbacks = {std::make_shared<EMAWeightAveraging>(), std::make_shared<Throws>(), checkpoints}});
  EXPECT_THROW(trainer.fit(task, train), std::runtime_error);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(KeptCheckpoints, SavesWhenSoMuchTimeHasPassedInTheFit) {
  OneWeight task;
  ListLoader train = loader_of({1, 2, 3});
  const auto fit_with = [&](std::chrono::milliseconds interval) {
    const auto checkpoints =
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_,
                                                                 .filename = "{step}",
                                                                 .save_top_k = -1,
                                                                 .save_last = false,
                                                                 .every_n_epochs = 0,
                                                                 .train_time_interval = interval});
    Trainer({.device = "cpu", .max_epochs = 1, .callbacks = {checkpoints}}).fit(task, train);
    return names();
  };
  EXPECT_THAT(fit_with(std::chrono::minutes(1)), IsEmpty()) << "counted from the start of the fit";
  EXPECT_THAT(fit_with(std::chrono::milliseconds(0)), UnorderedElementsAre("1", "2", "3"));
}

TEST_F(KeptCheckpoints, TwoAveragesAreRefused) {
  OneWeight task;
  ListLoader train = loader_of({1, 2});
  Trainer trainer(
      {.device = "cpu",
       .callbacks = {std::make_shared<EMAWeightAveraging>(), std::make_shared<EMAWeightAveraging>()}});
  EXPECT_THAT(error_of([&] { trainer.fit(task, train); }),
              HasSubstr("the Trainer has two of these callbacks"));
}

TEST_F(KeptCheckpoints, ASecondFitBeginsAnew) {
  const auto checkpoints = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder_, .filename = "{epoch}", .monitor = "m"});
  Trainer trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {checkpoints}});
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  for (const double value : {0.1, 0.7}) {
    std::filesystem::remove_all(folder_);
    Logs task;
    task.values = {value};
    trainer.fit(task, train, &val);
    EXPECT_EQ(checkpoints->best_model_score(), value);
  }
}

TEST_F(KeptCheckpoints, NamesInAStateThatLeadOutOfTheFolderAreRefused) {
  fit({.dirpath = folder_ / "run", .filename = "{epoch}"}, {1});
  std::filesystem::create_directories(folder_ / "victim");
  std::ofstream(folder_ / "victim" / "manifest.json") << "{}";
  for (const std::string& name :
       {std::string("../victim"), (folder_ / "victim").string(), std::string("..")}) {
    Checkpoint checkpoint = load_checkpoint(folder_ / "run" / "0");
    auto* callbacks = checkpoint.state.at("callbacks").get_if<StateDict>();
    auto* state = callbacks->at("mantissa::ModelCheckpoint").get_if<StateDict>();
    state->at("best") = StateDict{{name, StateDict{{"score", 0.0}, {"order", -1}}}};
    save_checkpoint(folder_ / "evil", checkpoint);
    Logs task;
    task.values = {1, 1};
    ListLoader train = loader_of({1, 2}), val = loader_of({1});
    const auto checkpoints = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / "rest", .filename = "{epoch}"});
    Trainer trainer({.device = "cpu", .max_epochs = 2, .callbacks = {checkpoints}});
    EXPECT_THAT(error_of([&] { trainer.fit(task, train, &val, folder_ / "evil"); }),
                HasSubstr("'" + name + "' is not a checkpoint name"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "victim" / "manifest.json"));
  }
}

TEST_F(KeptCheckpoints, FormatsAreTriedBeforeTheRun) {
  const auto error = [](const std::string& filename) {
    return error_of([&] { ModelCheckpoint callback({.filename = filename}); });
  };
  EXPECT_THAT(error("{epoch:.3f}"), HasSubstr("epoch and step are whole numbers"));
  EXPECT_THAT(error("{m:d}"), HasSubstr("invalid"));
  EXPECT_EQ(error("{epoch:03d}-{m:.3f}"), "no error");
  EXPECT_EQ(error("{val/loss:.2f}"), "no error") << "a metric's name is not the folder's";
  EXPECT_THAT(error(std::string(200, 'x')), HasSubstr("gives names of 200 bytes; leave it at 180"));
  EXPECT_THAT(error_of([] { ModelCheckpoint callback({.dirpath = ""}); }), HasSubstr("dirpath is empty"));
}

TEST_F(KeptCheckpoints, LieWhereTheProgramWasWhenTheyWereAskedFor) {
  const std::filesystem::path home = std::filesystem::current_path();
  std::filesystem::create_directories(folder_ / "a");
  std::filesystem::create_directories(folder_ / "b");
  std::filesystem::current_path(folder_ / "a");
  const auto checkpoints =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = "run", .filename = "{epoch}"});
  std::filesystem::current_path(folder_ / "b");
  OneWeight task;
  ListLoader train = loader_of({1});
  Trainer({.device = "cpu", .callbacks = {checkpoints}}).fit(task, train);
  std::filesystem::current_path(home);
  EXPECT_THAT(names("a/run"), ElementsAre("0"));
}

/// Fits `batches` in each epoch, `window` of them to a step, and validates every few of them.
std::shared_ptr<ModelCheckpoint> fit_windows(const std::filesystem::path& folder, int64_t window,
                                             int64_t val_check_interval, std::vector<float> batches,
                                             int64_t epochs, std::vector<double> metrics) {
  Logs task;
  task.values = std::move(metrics);
  ListLoader train = loader_of(std::move(batches)), val = loader_of({1});
  auto checkpoints = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
      .dirpath = folder, .filename = "{step}", .monitor = "m", .every_n_train_steps = 1});
  Trainer({.device = "cpu",
           .max_epochs = epochs,
           .val_check_interval = val_check_interval,
           .num_sanity_val_steps = 0,
           .accumulate_grad_batches = window,
           .callbacks = {checkpoints}})
      .fit(task, train, &val);
  return checkpoints;
}

TEST_F(KeptCheckpoints, AScoreMeasuredInsideAWindowIsOfTheStepBeforeIt) {
  // Steps follow batches 2, 4 and 6 of each epoch, and validations batches 3 and 6.
  const auto made = fit_windows(folder_, 2, 3, {1, 2, 3, 4, 5, 6}, 2, {3, 2, 1, 5});
  EXPECT_EQ(made->best_model_path().filename(), "4");
  EXPECT_THAT(names(), UnorderedElementsAre("4", "6")) << "3, which was the best one before, has gone";
}

TEST_F(KeptCheckpoints, TheFirstScoreOfTheSameWeightsStays) {
  // Steps follow batches 5 and 10, and validations every second batch. Those after 6 and 8 are both of step 1.
  const auto made = fit_windows(folder_, 5, 2, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 1, {9, 8, 1, 2, 7});
  EXPECT_EQ(made->best_model_path().filename(), "1");
  EXPECT_EQ(made->best_model_score(), 1);
}

}  // namespace
}  // namespace mantissa::kept_checkpoints_test
