// Tests of resumed runs, and of the commands for trained models.
#include <csignal>
#include <cstdlib>
#include <random>

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::resume_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

const std::string kRun =
    "--model mlp --max-epochs 4 --every-n-train-steps 7 --log-every-n-steps 1 --ema-decay 0.9 ";

class SavedRun : public Program {
 protected:
  /// Returns the weights and the log of a run.
  std::string traces(const std::string& run) const {
    return read(folder_ / run / "metrics.csv") + read(folder_ / run / "weights.safetensors");
  }
};

TEST_F(SavedRun, AnInterruptedRunContinuesAsIfNothingHadHappened) {
  for (const std::string mode : {"32-true", "16-mixed"}) {
    const std::string words = kRun + "--precision " + mode;
    ASSERT_EQ(fit(words + " --output whole-" + mode).status, 0);
    const std::string half = "half-" + mode;
    const Outcome ended =
        run("fit --device cpu --quiet " + words + " --output " + half + " & pid=$!; until grep -q ^0,20, " +
            half + "/metrics.csv 2>/dev/null; do sleep 0.002; done; kill -TERM $pid; wait $pid");
    EXPECT_THAT(ended.status, testing::AnyOf(143, 0));
    if (ended.status == 0) continue;  // the run was faster than the signal
    ASSERT_EQ(run("resume --quiet " + half).status, 0);
    EXPECT_TRUE(traces("whole-" + mode) == traces(half)) << mode;
  }
}

// The run is killed at a random moment each time. Another process must be able to resume it from the folder.
TEST_F(SavedRun, AKilledRunIsResumedBitForBit) {
  const auto times = [] {
    const char* const asked = std::getenv("MANTISSA_KILLS");
    return asked ? std::atoi(asked) : 6;
  }();
  ASSERT_EQ(fit(kRun + "--output whole").status, 0);
  const std::string whole = traces("whole");
  std::minstd_rand random(7);
  int killed = 0;
  for (int i = 0; i < times; ++i) {
    const std::string name = "run" + std::to_string(i);
    std::string words = "fit --device cpu --quiet " + kRun + "--output " + name;
    for (int deaths = 0;; ++deaths) {
      // Mostly while it trains, sometimes while it starts.
      const std::string begun =
          random() % 8 == 0 ? "" : "until [ -e " + name + "/metrics.csv ]; do sleep 0.005; done; ";
      const std::string moment = std::to_string(static_cast<double>(random() % 450) / 1000);
      // It is killed twice at most, so that it comes to an end.
      const std::string limit =
          deaths < 2 ? " & pid=$!; " + begun + "sleep " + moment + "; kill -KILL $pid; wait $pid" : "";
      const Outcome outcome = run(words + limit);
      if (outcome.status == 0) break;
      ASSERT_EQ(outcome.status, 137) << outcome.err;
      ++killed;
      // A run exists only once its configuration is written.
      if (fs::exists(folder_ / name / "config.yaml")) {
        words = "resume --quiet " + name;
      } else {
        fs::remove_all(folder_ / name);
      }
      if (fs::exists(folder_ / name / "result.json")) break;  // it had just ended
    }
    EXPECT_TRUE(traces(name) == whole) << name;
    fs::remove_all(folder_ / name);
  }
  RecordProperty("killed", killed);
  EXPECT_GT(killed, 0);
}

// Training continues while nothing can be saved, and ends with an error. Nothing is lost once there is room
// again.
TEST_F(SavedRun, ARunThatFilledTheDiskIsResumedWhenThereIsRoom) {
  constexpr const char* kTry =
      "unshare -rm sh -c 'mount -t tmpfs -o size=1m tmpfs /mnt && mount -o remount,size=2m /mnt' 2>/dev/null";
  if (std::system(kTry) != 0) GTEST_SKIP() << "may not mount a tmpfs here";
  ASSERT_EQ(fit(kRun + "--output whole").status, 0);
  write("full.sh",
        "mkdir disk && mount -t tmpfs -o size=2m tmpfs disk || exit 1\n"
        "mantissa=" MANTISSA_PROGRAM
        "\n"
        "$mantissa fit --device cpu --quiet " +
            kRun +
            "--save-top-k -1 --output disk/run\n"
            "echo full: status $?\n"
            "ls disk/run/weights.safetensors\n"
            "mount -o remount,size=64m disk\n"
            "$mantissa resume --quiet disk/run >resumed.txt\n"
            "echo resumed: status $?\n"
            "cp disk/run/weights.safetensors after.safetensors\n");
  const Outcome outcome = run("--version >/dev/null; unshare -rm sh full.sh");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("full: status 1\n"), HasSubstr("resumed: status 0\n")))
      << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("the run's last checkpoint could not be written"), HasSubstr("No space left")));
  EXPECT_FALSE(read(folder_ / "after.safetensors").empty());
  EXPECT_TRUE(read(folder_ / "after.safetensors") == read(folder_ / "whole/weights.safetensors"));
}

TEST_F(SavedRun, ACompleteRunIsTrainedFurtherOnlyWhenAsked) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --lr-schedule constant --output run").status, 0);
  expect_error(run("resume run"), 1, {"the run in run is complete", "--max-epochs"});
  expect_error(run("resume run --max-epochs 1"), 1,
               {"is complete, with 1 epochs", "--max-epochs above that"});
  expect_error(run("resume run --max-steps 1"), 1, {"--max-steps above that"});
  const Outcome further = run("resume run --max-epochs 2 --quiet --json further.json");
  ASSERT_EQ(further.status, 0) << further.err;
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "further.json"))["epochs"], 2);
  ASSERT_EQ(fit("--model mlp --max-epochs 2 --lr-schedule constant --output whole").status, 0);
  EXPECT_TRUE(traces("run") == traces("whole"));
  expect_error(run("resume run"), 1, {"is complete"});
}

TEST_F(SavedRun, ADamagedNewestCheckpointIsReported) {
  ASSERT_EQ(fit("--model mlp --max-epochs 2 --output run --save-top-k -1").status, 0);
  fs::remove(folder_ / "run/result.json");
  fs::resize_file(folder_ / "run/checkpoints/epoch=1-step=90/weights.safetensors", 100);
  const Outcome resumed = run("resume run --quiet");
  EXPECT_EQ(resumed.status, 0);
  EXPECT_THAT(resumed.err, HasSubstr("that is or may be newer cannot be used"));
}

TEST_F(SavedRun, AnotherPrecisionTakesItAndSaysWhatIsLost) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --precision 16-mixed --output run").status, 0);
  const Outcome resumed = run("resume run --quiet --precision bf16-true --max-epochs 2");
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.err,
              AllOf(HasSubstr("rounded from Float to BFloat16"), HasSubstr("loss scale is dropped")));
}

TEST_F(SavedRun, DataThatHasMovedIsFoundByItsFlag) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "a few words ";
  write("text.txt", text), write("table.csv", "x,class\n1,0\n2,1\n");
  const std::string words =
      "--data text:text.txt --context 16 --batch-size 2 --warmup-steps 1 "
      "--lr-schedule constant --limit-val-batches 1 ";
  ASSERT_EQ(fit(words + "--max-steps 4 --output whole").status, 0);
  ASSERT_EQ(fit(words + "--max-steps 2 --output run").status, 0);
  fs::create_directory(folder_ / "moved"), fs::rename(folder_ / "text.txt", folder_ / "moved/text.txt");
  const std::vector<std::string> parts{"the run in 'run' has --data text:text.txt in 'run/config.yaml'",
                                       "'text.txt' is not there; give its place now as --data"};
  expect_error(run("resume run --max-steps 4"), 1, parts);
  for (const char* command : {"validate run", "test run", "predict run"})
    expect_error(run(command), 1, parts);
  expect_error(run("resume run --max-steps 4 --data csv:table.csv"), 2,
               {"--data csv:table.csv: the run in 'run' trains on data of another kind, text:text.txt"});
  const Outcome resumed = run("resume run --device cpu --quiet --max-steps 4 --data text:moved/text.txt");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "whole/weights.safetensors"));
  EXPECT_EQ(run("validate run --quiet").status, 0) << "the run knows the place now";
}

TEST_F(SavedRun, DataOfAnotherSizeIsRefused) {
  const auto write_rows = [&](const std::string& name, int rows) {
    std::string table = "x,class\n";
    for (int i = 0; i < rows; ++i) table += c10::str(i, ',', i % 2, '\n');
    write(name, table);
  };
  const std::string words = "--data csv:table.csv --lr-schedule constant ";
  write_rows("table.csv", 60), write_rows("more.csv", 75), write_rows("same.csv", 60);
  ASSERT_EQ(fit(words + "--max-epochs 1 --output run").status, 0);
  const std::vector<std::string> sizes{
      "has 60 samples to train on and 15 to validate on, and the run began with 48 and 12",
      "give the data it began with as --data, or begin another run: fit --weights"};
  const std::string before = read(folder_ / "run/result.json");
  for (const char* const plan : {"", " --plan"})
    expect_error(run(std::string("resume run --max-epochs 2 --data csv:more.csv") + plan), 1, sizes);
  EXPECT_EQ(read(folder_ / "run/result.json"), before);
  EXPECT_EQ(run("validate run --quiet --data csv:more.csv").status, 0) << "other data is for measurements";
  EXPECT_EQ(run("resume run --quiet --max-epochs 2 --data csv:same.csv").status, 0);
  write_rows("same.csv", 75);
  expect_error(run("resume run --max-epochs 3"), 1, sizes);  // it has changed in place
  fs::remove(folder_ / "run/data.json");                     // as in a run from before sizes were kept
  EXPECT_EQ(run("resume run --quiet --max-epochs 3").status, 0);
}

TEST_F(SavedRun, ItsFilesAreNoOutput) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --output run").status, 0);
  const std::string weights = read(folder_ / "run/weights.safetensors");
  fs::create_symlink("run/weights.safetensors", folder_ / "link");
  for (const char* const command :
       {"validate run --json run/weights.safetensors", "test run --json run/config.yaml",
        "predict run --output run/weights.safetensors", "predict run --output run/../run/metrics.csv",
        "predict run --output link", "predict run --output run/checkpoints/last.csv",
        "fit --max-steps 1 --model mlp --output other --json run/weights.safetensors",
        "fit --max-steps 1 --model mlp --output other --json other/weights.safetensors"}) {
    if (std::string(command).find("other/") != std::string::npos) fs::create_directory(folder_ / "other");
    const Outcome outcome = run(std::string(command) + " --quiet");
    EXPECT_EQ(outcome.status, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr("is a file of the run in")) << command;
  }
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), weights);
  EXPECT_EQ(run("validate run --quiet --json run/mine.json").status, 0);
}

TEST_F(SavedRun, APinOfAnotherCpuIsLifted) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --output run --cpu-kernels generic").status, 0);
  std::string config = read(folder_ / "run/config.yaml");
  config.replace(config.find("cpu_kernels: generic"), 20, "cpu_kernels: avx512");
  write("run/config.yaml", config);
  const char* const mine = std::getenv("MANTISSA_MAX_ISA");
  const std::string before = mine == nullptr ? "" : mine;
  setenv("MANTISSA_MAX_ISA", "generic", 1);
  const Outcome refused = run("resume run --max-epochs 2 --quiet");
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("not avx512; choose one of these, or 'measured'"));
  const Outcome lifted = run("resume run --max-epochs 2 --quiet --cpu-kernels measured");
  before.empty() ? unsetenv("MANTISSA_MAX_ISA") : setenv("MANTISSA_MAX_ISA", before.c_str(), 1);
  EXPECT_EQ(lifted.status, 0) << lifted.err;
}

TEST_F(SavedRun, AConfigurationThatLacksOptionsIsNone) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --output run --seed 7").status, 0);
  std::string without_seed = read(folder_ / "run/config.yaml");
  without_seed.replace(without_seed.find("seed: 7"), 7, "");
  for (const std::string& config : {std::string(), std::string("{}\n"), without_seed}) {
    write("run/config.yaml", config);
    for (const char* const command : {"resume run --max-epochs 2", "validate run"}) {
      const Outcome outcome = run(std::string(command) + " --quiet");
      EXPECT_EQ(outcome.status, 2) << command;
      EXPECT_THAT(outcome.err, HasSubstr("lacks options that every run writes")) << command;
    }
  }
}

TEST_F(SavedRun, WhatIsNoRunIsRefused) {
  write("file", "");
  fs::create_directory(folder_ / "empty");
  for (const char* command : {"resume", "validate", "test", "predict"}) {
    expect_error(run(std::string(command) + " nothing"), 2, {"'nothing' does not exist"});
    expect_error(run(std::string(command) + " file"), 2, {"'file' is not a folder"});
    expect_error(run(std::string(command) + " empty"), 2, {"'empty' holds no run", "config.yaml"});
    expect_error(run(command), 2, {"run"});
  }
  write("started/config.yaml", run("fit --model mlp --print-config").out);
  expect_error(run("validate started"), 1, {"neither weights.safetensors nor a checkpoint", "--weights"});
  expect_error(run("validate started --precision all"), 2, {"choose one mode"});
}

/// Waits for the first step after a complete run is resumed: the old result is removed then.
constexpr const char* kWaitForStep =
    "for i in $(seq 6000); do [ -e run/result.json ] || break; sleep 0.005; done; ";

TEST_F(SavedRun, TwoProcessesInOneRunAreOneTooMany) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --lr-schedule constant --output run").status, 0);
  const Outcome outcome =
      run("resume run --quiet --max-epochs 100000 --save-top-k -1 2>first.txt & pid=$!; " +
          std::string(kWaitForStep) +
          "cp run/config.yaml before.yaml; " MANTISSA_PROGRAM
          " resume run --quiet --max-epochs 3; echo second: status $?; cp run/config.yaml "
          "after.yaml; " MANTISSA_PROGRAM
          " inspect run/checkpoints >/dev/null; echo inspect: status $?; " MANTISSA_PROGRAM
          " validate run --quiet >/dev/null; echo validate: status $?; kill -INT $pid; wait $pid");
  EXPECT_EQ(outcome.status, 130) << read(folder_ / "first.txt");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("second: status 1\n"), HasSubstr("inspect: status 0\n"),
                                 HasSubstr("validate: status 0\n")))
      << outcome.err;
  EXPECT_THAT(outcome.err, testing::MatchesRegex(
                               "mantissa: error: the folder 'run' is in use by process [^\n]*; wait for it, "
                               "end it, or choose another folder\n"));
  EXPECT_THAT(read(folder_ / "before.yaml"), HasSubstr("max_epochs: 100000 "));
  EXPECT_EQ(read(folder_ / "after.yaml"), read(folder_ / "before.yaml"));
  EXPECT_FALSE(fs::exists(folder_ / "run/.lock"));
}

// A complete run is no longer complete once training has continued.
TEST_F(SavedRun, ACompleteRunThatIsTrainedFurtherAndKilledIsResumed) {
  const std::string words = "--model mlp --lr-schedule constant ";
  ASSERT_EQ(fit(words + "--max-epochs 1 --output run").status, 0);
  const Outcome killed = run("resume run --quiet --max-epochs 40 & pid=$!; " + std::string(kWaitForStep) +
                             "kill -KILL $pid; wait $pid");
  ASSERT_EQ(killed.status, 137) << killed.err;
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("max_epochs: 40 "));
  // The commands use the current state of the training, not that of the earlier result.
  const Outcome asked = run("validate run --quiet --json -");
  ASSERT_EQ(asked.status, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("run/checkpoints/epoch="));
  const Outcome resumed = run("resume run --quiet --json resumed.json");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "resumed.json"))["epochs"], 40);
  ASSERT_EQ(fit(words + "--max-epochs 40 --output whole").status, 0);
  EXPECT_TRUE(traces("run") == traces("whole"));
  EXPECT_THAT(run("validate run --quiet --json -").out, HasSubstr("run/weights.safetensors"));
}

TEST_F(SavedRun, AResumeThatFailsBeforeItsFirstStepLeavesTheRunAsItWas) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --output run").status, 0);
  const std::string config = read(folder_ / "run/config.yaml"), result = read(folder_ / "run/result.json");
  fs::resize_file(folder_ / "run/checkpoints/epoch=0-step=45/weights.safetensors", 100);
  const Outcome failed = run("resume run --quiet --max-epochs 2");
  EXPECT_EQ(failed.status, 1);
  EXPECT_THAT(failed.err, AllOf(HasSubstr("every checkpoint in "), HasSubstr("is damaged")));
  EXPECT_EQ(read(folder_ / "run/config.yaml"), config);
  EXPECT_EQ(read(folder_ / "run/result.json"), result);
}

TEST_F(SavedRun, ValidateRepeatsWhatTheRunReached) {
  ASSERT_EQ(fit("--model mlp --max-epochs 2 --output run --json result.json").status, 0);
  const auto result = nlohmann::json::parse(read(folder_ / "result.json"));
  const Outcome outcome = run("validate run --quiet --json again.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto again = nlohmann::json::parse(read(folder_ / "again.json"));
  EXPECT_EQ(again["val_loss"], result["val_loss"]);
  EXPECT_EQ(again["val_accuracy"], result["val_accuracy"]);
  EXPECT_EQ(again["samples"], 359);
  EXPECT_GT(again["peak_memory_bytes"], 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("val_accuracy"), HasSubstr("359 samples of digits"),
                                 ContainsRegex("peak memory   [1-9][0-9]* MiB\n")));
  // Without the final weights of the run, the commands use those of the newest checkpoint.
  fs::remove(folder_ / "run/weights.safetensors");
  const Outcome from_checkpoint = run("validate run --quiet --json -");
  ASSERT_EQ(from_checkpoint.status, 0) << from_checkpoint.err;
  EXPECT_EQ(nlohmann::json::parse(from_checkpoint.out)["val_loss"], result["val_loss"]);
  EXPECT_THAT(from_checkpoint.out, HasSubstr("checkpoints/epoch=1-step=90"));
}

TEST_F(SavedRun, TheMemoryFormatIsTheRunsUnlessToldOtherwise) {
  ASSERT_EQ(fit("--model convnet --max-epochs 1 --channels-last --output run").status, 0);
  const auto loss = [&](const std::string& words) {
    const Outcome outcome = run("validate run --quiet --json - " + words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["val_loss"].get<double>();
  };
  const double reached = nlohmann::json::parse(read(folder_ / "run/result.json"))["val_loss"];
  EXPECT_EQ(loss(""), reached);
  EXPECT_NEAR(loss("--no-channels-last"), reached, 1e-2);  // bf16 products with another order of summation
  const Outcome resumed = run("resume run --quiet --max-epochs 2 --no-channels-last");
  EXPECT_EQ(resumed.status, 0);
  EXPECT_THAT(resumed.err, HasSubstr("its channels_last was true and is false"));
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("channels_last: false "));
}

TEST_F(SavedRun, OptionsWithoutEffectAreWarnedOf) {
  ASSERT_EQ(fit("--model mlp --max-steps 1 --output run").status, 0);
  for (const char* command : {"validate run", "test run", "predict run", "resume run --max-steps 2"}) {
    const std::string quietly = std::string(command) + " --quiet --device cpu ";
    EXPECT_THAT(run(quietly + "--channels-last").err,
                HasSubstr("--channels-last has no effect with --model mlp, which has no convolutions"));
  }
  EXPECT_THAT(run("test run --quiet --device cpu --benchmark").err,
              HasSubstr("--benchmark has no effect with --device cpu, which has no cuDNN"));
}

TEST_F(SavedRun, TestTakesOtherDataWhole) {
  ASSERT_EQ(fit("--model mlp --max-epochs 2 --output run").status, 0);
  const Outcome whole = run("test run --quiet --data digits --json -"),
                held_out = run("test run --quiet --json -");
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(nlohmann::json::parse(whole.out)["samples"], 1797);
  EXPECT_EQ(nlohmann::json::parse(held_out.out)["samples"], 359);
  EXPECT_GT(nlohmann::json::parse(held_out.out)["test_accuracy"], 0.8);
}

TEST_F(SavedRun, PredictWritesARowForEachSample) {
  ASSERT_EQ(fit("--model mlp --max-epochs 2 --output run").status, 0);
  const Outcome outcome = run("predict run --quiet --precision bf16-mixed --data digits");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::istringstream rows(outcome.out);
  std::string line;
  std::getline(rows, line);
  EXPECT_EQ(line, "index,class,probability");
  int64_t count = 0;
  int64_t label = -1;
  double probability = 0;
  for (int64_t index = -1; std::getline(rows, line); ++count) {
    ASSERT_EQ(std::sscanf(line.c_str(), "%ld,%ld,%lf", &index, &label, &probability), 3) << line;
    EXPECT_EQ(index, count);
    EXPECT_TRUE(label >= 0 && label < 10 && probability > 0 && probability <= 1) << line;
  }
  EXPECT_EQ(count, 1797);
  ASSERT_EQ(run("predict run --quiet --precision bf16-mixed --data digits --output rows.csv").status, 0);
  EXPECT_EQ(read(folder_ / "rows.csv"), outcome.out);
  expect_error(run("predict run --output absent/rows.csv"), 1, {"there is no folder"});
  write("rows.csv", "something else");
  expect_error(run("predict run --output rows.csv"), 1, {"'rows.csv' already exists", "--overwrite"});
  EXPECT_EQ(read(folder_ / "rows.csv"), "something else");
  ASSERT_EQ(run("predict run --quiet --precision bf16-mixed --output rows.csv --overwrite").status, 0);
  EXPECT_EQ(read(folder_ / "rows.csv").substr(0, 24), "index,class,probability\n");
}

TEST_F(SavedRun, InspectShowsCheckpoints) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --precision 16-mixed --output run").status, 0);
  for (const char* what : {"run/checkpoints", "run/checkpoints/epoch=0-step=45"}) {
    const Outcome outcome = run(std::string("inspect --check --json ") + what);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const auto listing = nlohmann::json::parse(outcome.out)[0];
    EXPECT_EQ(listing["kind"], "checkpoint");
    EXPECT_EQ(listing["metadata"]["step"], "45");
    EXPECT_EQ(listing["metadata"]["epoch"], "1");
    EXPECT_EQ(listing["metadata"]["precision"], "16-mixed");
    std::set<std::string> names;
    for (const auto& tensor : listing["tensors"]) names.insert(tensor["name"]);
    EXPECT_TRUE(names.contains("layers.0.weight"));
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return name.starts_with("state/optimizers.0.") && name.ends_with("momentum_buffer");
    })) << outcome.out;
  }
  std::ofstream(folder_ / "run/checkpoints/epoch=0-step=45/manifest.json") << "{}";
  expect_error(run("inspect run/checkpoints/epoch=0-step=45"), 1, {"manifest.json"});
}

TEST_F(SavedRun, LoggersAreChosenByName) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --logger jsonl --no-enable-checkpointing --output run").status,
            0);
  EXPECT_TRUE(fs::exists(folder_ / "run/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(folder_ / "run/metrics.csv"));
  EXPECT_FALSE(fs::exists(folder_ / "run/checkpoints"));
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --logger none --output quiet").status, 0);
  EXPECT_FALSE(fs::exists(folder_ / "quiet/metrics.csv"));
  expect_error(fit("--logger cvs"), 2, {"--logger 'cvs'", "did you mean 'csv'?"});
  expect_error(fit("--logger none,csv"), 2, {"none cannot be combined"});
  expect_error(fit("--monitor loss"), 2, {"--monitor 'loss'"});
  expect_error(fit("--save-top-k -2"), 2, {"--save-top-k -2"});
}

TEST_F(SavedRun, ACompleteRunWithoutCheckpointsIsNotBegunAgain) {
  ASSERT_EQ(
      fit("--model mlp --max-epochs 1 --limit-train-batches 2 --no-enable-checkpointing --output run").status,
      0);
  const std::string arguments = "resume run --quiet --max-epochs 2";
  expect_error(run(arguments), 1, {"has no checkpoints to resume from", "fit --weights"});
  // The state that a signal would have left.
  fs::remove(folder_ / "run/result.json");
  const std::string rows = read(folder_ / "run/metrics.csv");
  expect_error(run(arguments), 1, {"has no checkpoints to resume from", "fit --weights"});
  EXPECT_EQ(read(folder_ / "run/metrics.csv"), rows);
  // It was killed before it had any weights, so nothing is lost.
  fs::remove(folder_ / "run/weights.safetensors");
  const Outcome again = run(arguments);
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.err, HasSubstr("the run in run has no checkpoint to resume from and starts again"));
}

TEST_F(SavedRun, WeightsWithoutRoomForACheckpointAreSavedAlone) {
  constexpr const char* kTry =
      "unshare -rm sh -c 'mount -t tmpfs -o size=1m tmpfs /mnt && mount -o remount,size=2m /mnt' 2>/dev/null";
  if (std::system(kTry) != 0) GTEST_SKIP() << "may not mount a tmpfs here";
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --lr-schedule constant --output run").status, 0);
  // There is room for the existing checkpoint and half of another.
  write("small.sh",
        "cp -r run/checkpoints kept && size=$(du -sk kept | cut -f 1)\n"
        "mount -t tmpfs -o size=$((size * 3 / 2))k tmpfs run/checkpoints || exit 1\n"
        "cp -r kept/. run/checkpoints && cp run/weights.safetensors before.safetensors\n" MANTISSA_PROGRAM
        " resume --quiet --max-epochs 2 run\n"
        "echo status $?\n");
  const Outcome outcome = run("--version >/dev/null; unshare -rm sh small.sh");
  EXPECT_THAT(outcome.out, HasSubstr("status 1\n")) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("the run's last checkpoint could not be written"),
                    HasSubstr("the weights as they were at the error are in run/weights.safetensors")));
  EXPECT_EQ(run("inspect run/weights.safetensors").status, 0);
  EXPECT_NE(read(folder_ / "run/weights.safetensors"), read(folder_ / "before.safetensors"));
}

}  // namespace
}  // namespace mantissa::cli::resume_test
