// Tests of fit: the files that runs leave, their statuses, signals, and every mode.
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/modes_test_support_internal.h"
#include "cli/test_support_internal.h"

namespace mantissa::cli::fit_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

TEST_F(Program, WeightsThatAreNotFiniteAreRefusedBeforeTraining) {
  ASSERT_EQ(fit("--precision 32-true --model mlp --max-steps 40 --lr 1e6 --output bad").status, 0);
  for (const char* mode : {"32-true", "16-mixed"})
    expect_error(fit(std::string("--model mlp --weights bad/weights.safetensors --precision ") + mode), 1,
                 {"--weights bad/weights.safetensors: ", " values of '", "more tensors) are nan or inf",
                  "before its run diverged"});
}

TEST_F(Program, ARunThatFailsBeforeItsFirstStepRemovesItsFolder) {
  // Batch norm refuses to train on one image of one pixel, which only shows in the first forward pass.
  write("one/a-images-idx3-ubyte", idx_header(8, {2, 1, 1}) + std::string(2, '\1'));
  write("one/a-labels-idx1-ubyte", idx_header(8, {2}) + std::string("\0\1", 2));
  const std::string arguments = "--model resnet-tiny --val-fraction 0.5 --data idx:one";
  expect_error(fit(arguments), 1, {"more than 1 value"});
  expect_error(fit(arguments + " --output new/run"), 1, {"more than 1 value"});
  write("mine/metrics.csv", "kept");
  expect_error(fit(arguments + " --output mine"), 1, {"already holds a run's metrics.csv"});
  EXPECT_EQ(read(folder_ / "mine/metrics.csv"), "kept");
}

// The second run must not remove the first one's files when it gives up.
TEST_F(Program, OfTwoRunsInOneFolderOneIsWholeAndOneIsRefused) {
  for (int i = 0; i < 6; ++i) {
    const std::string name = "both" + std::to_string(i),
                      words = "fit --device cpu --quiet --model mlp --max-steps 20 --output " + name;
    run(words + " 2>first.txt & pid=$!; " MANTISSA_PROGRAM " " + words +
        " 2>second.txt; echo $? >second.status; wait $pid; echo $? >first.status");
    const std::string first = read(folder_ / "first.status"), second = read(folder_ / "second.status");
    EXPECT_EQ(std::set({first, second}), std::set<std::string>({"0\n", "1\n"})) << first << second;
    EXPECT_THAT(
        read(folder_ / (first == "0\n" ? "second.txt" : "first.txt")),
        MatchesRegex(
            "mantissa: error: [^\n]*(is in use by (process|another process)|already holds a run's)[^\n]*\n"));
    for (const char* file :
         {"config.yaml", "metrics.csv", "result.json", "weights.safetensors", "checkpoints"})
      EXPECT_TRUE(fs::exists(folder_ / name / file)) << file;
    EXPECT_FALSE(fs::exists(folder_ / name / ".lock"));
  }
}

// The lock that a killed process has left does not make a run.
TEST_F(Program, AFolderWithAnOldLockIsFree) {
  write("run/.lock", "process 1 on nowhere");
  EXPECT_EQ(fit("--model mlp --max-steps 1 --output run").status, 0);
}

TEST_F(Program, ALossThatIsNotFiniteIsWarnedOf) {
  const Outcome outcome = fit("--precision 32-true --model mlp --max-steps 20 --lr 1e6");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("mantissa: warning: the final val_loss of --precision 32-true is"));
  EXPECT_THAT(outcome.out + outcome.err, testing::Not(HasSubstr("-nan"))) << "a sign that says nothing";
}

// Four checkpoints fail, in the thread that writes them.
TEST_F(Program, WarningsOfAllThreadsArePlainAndComeOnce) {
  const std::string limit = "trap '' XFSZ; ulimit -f 40; ";  // like a full disk, above 40 or 20 KiB
  const std::string command =
      "cd '" + folder_.string() + "' && (" + limit + MANTISSA_PROGRAM +
      " fit --device cpu --quiet --model mlp --max-epochs 4 --logger none --output run"
      ") 2>told.txt >/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  const std::string told = read(folder_ / "told.txt");
  EXPECT_THAT(told,
              MatchesRegex("mantissa: warning: ModelCheckpoint: a checkpoint could not be written[^\n]*\n"
                           "mantissa: error: [^\n]*\n"));
}

// Otherwise the process of each mode would repeat it.
TEST_F(Program, AWarningOfSeveralModesComesOnce) {
  const std::string told = fit("--precision all --model mlp --max-steps 4 --warmup-steps 3 --output run").err;
  const std::string warning = "mantissa: warning: --warmup-steps 3 is more than half";
  const size_t first = told.find(warning);
  ASSERT_NE(first, std::string::npos) << told;
  EXPECT_EQ(told.find(warning, first + 1), std::string::npos) << told;
}

TEST_F(Program, BadFilesExitWithOneAndLeaveNothing) {
  expect_error(fit("--data idx:absent"), 1, {"absent"});
  expect_error(fit("--data text:absent.txt"), 1, {"absent.txt"});
  write("empty.txt", "");
  expect_error(fit("--data text:empty.txt"), 1, {"empty.txt"});
  write("short.txt", "too short for one window");
  expect_error(fit("--data text:short.txt"), 1, {"short.txt", "129", "longer file", "--val-fraction"});
  write("split.txt", std::string(1000, 'a'));
  expect_error(fit("--data text:split.txt"), 1, {"split.txt", "900", "100", "129"});
  expect_error(fit("--data text:split.txt --val-fraction 0.9"), 1, {"split.txt"});

  const std::string images = idx_header(8, {2, 2, 2}) + std::string(8, '\1'),
                    labels = idx_header(8, {2}) + "\1\2";
  write("truncated/a-images-idx3-ubyte", images.substr(0, images.size() - 1));
  write("truncated/a-labels-idx1-ubyte", labels);
  expect_error(fit("--data idx:truncated"), 1, {"a-images-idx3-ubyte"});
  write("unequal/a-images-idx3-ubyte", images);
  write("unequal/a-labels-idx1-ubyte", idx_header(8, {3}) + "\1\2\3");
  expect_error(fit("--data idx:unequal"), 1, {"a-labels-idx1-ubyte", "3", "2"});
  write("none/a-images-idx3-ubyte", idx_header(8, {0, 2, 2}));
  write("none/a-labels-idx1-ubyte", idx_header(8, {0}));
  expect_error(fit("--data idx:none"), 1, {"a-images-idx3-ubyte"});
  write("label/train-images-idx3-ubyte", images);
  write("label/train-labels-idx1-ubyte", labels);
  write("label/t10k-images-idx3-ubyte", images);
  write("label/t10k-labels-idx1-ubyte", idx_header(8, {2}) + "\1\x63");
  expect_error(fit("--data idx:label"), 1, {"t10k-labels-idx1-ubyte", "99"});

  write("range/a-images-idx3-ubyte", images);
  write("range/a-labels-idx1-ubyte", labels);
  expect_error(fit("--data idx:range --classes 2"), 1, {"a-labels-idx1-ubyte", "label 2", "2 classes"});

  write("weights.safetensors", "not a safetensors file");
  expect_error(fit("--weights weights.safetensors"), 1, {"weights.safetensors"});
}

TEST_F(Program, OutputsThatCannotBeWrittenAreFoundBeforeTraining) {
  write("file", "");
  expect_error(fit("--output file/run"), 1, {"file/run", "--output"});
  expect_error(fit("--json absent/result.json"), 1, {"absent/result.json", "no folder absent"});
  expect_error(fit("--json ."), 1, {"it is a folder"});
  expect_error(fit("--json /dev/null"), 1, {"/dev/null", "a device"});
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_error(fit("--json pipe"), 1, {"pipe", "- for standard output"});
  fs::create_symlink("pipe", folder_ / "to_pipe");
  expect_error(fit("--json to_pipe"), 1, {"to_pipe", "a device, pipe"});
  fs::create_symlink("absent/result.json", folder_ / "to_nothing");
  expect_error(fit("--json to_nothing"), 1, {"to_nothing", "no folder absent"});
  expect_error(fit("--json " + std::string(300, 'n')), 1, {"name too long"});
  // The permissions of root allow writing anywhere, but not here.
  expect_error(fit("--json /proc/result.json"), 1, {"/proc/result.json cannot be written: folder /proc"});
  expect_error(fit("--output /proc/run"), 1, {"/proc/run", "--output"});
  write("all/bf16-true/config.yaml", "");
  expect_error(fit("--precision all --model mlp --max-steps 1 --output all"), 1,
               {"all/bf16-true already holds a run's config.yaml"});
  ASSERT_EQ(fit("--max-steps 1 --output run").status, 0);
  expect_error(fit("--max-steps 1 --output run"), 1, {"already holds a run's config.yaml"});
}

TEST_F(Program, JsonGoesToStandardOutputAndThroughLinksAndNeedsNoUtf8) {
  const Outcome outcome = fit("--model mlp --max-steps 1 --json - --output 'caf\xe9'");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["run_folder"], "caf\xef\xbf\xbd");
  EXPECT_THAT(outcome.err, HasSubstr("val accuracy"));
  EXPECT_TRUE(fs::exists(folder_ / "caf\xe9/result.json"));

  fs::create_symlink("result.json", folder_ / "link");
  ASSERT_EQ(fit("--model mlp --max-steps 1 --json link").status, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "result.json"))["steps"], 1);
}

TEST_F(Program, FitLeavesARunThatSaysWhatItWas) {
  const Outcome outcome = fit("--precision 16-mixed --max-epochs 2 --json result.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("16-mixed"), HasSubstr("val accuracy"),
                                 HasSubstr("runs/digits-convnet-16-mixed-1")));
  const auto result = nlohmann::json::parse(read(folder_ / "result.json"));
  EXPECT_EQ(result["precision"], "16-mixed");
  EXPECT_EQ(result["device"], "cpu");
  EXPECT_EQ(result["steps"], 90);
  EXPECT_EQ(result["skipped_steps"], 0);
  EXPECT_EQ(result["parameters"], 38282);
  EXPECT_GT(result["val_accuracy"], 0.8);
  for (const char* key :
       {"train_loss", "val_loss", "seconds", "step_ms", "samples_per_second", "peak_memory_bytes"})
    EXPECT_GT(result[key], 0) << key;
  const fs::path run = folder_ / "runs/digits-convnet-16-mixed-1";
  for (const char* file : {"config.yaml", "metrics.csv", "result.json", "weights.safetensors", "checkpoints"})
    EXPECT_TRUE(fs::exists(run / file)) << file;
  EXPECT_THAT(read(run / "metrics.csv"),
              MatchesRegex("epoch,step,skipped_steps,train_loss,train_loss_step,val_accuracy,val_loss\n"
                           "0,45,0,[^,\n]+,,[^\n]+\n1,50,0,,[^,\n]+,,\n1,90,0,[^,\n]+,,[^\n]+\n"));
}

TEST_F(Program, TheConfigurationOfARunRepeatsIt) {
  ASSERT_EQ(fit("--precision 32-true --model mlp --max-epochs 2 --seed 5 --output first").status, 0);
  EXPECT_THAT(read(folder_ / "first/config.yaml"), testing::Not(HasSubstr("\noutput:")));
  ASSERT_EQ(run("fit --quiet --config first/config.yaml").status, 0);
  fs::rename(folder_ / "runs/digits-mlp-32-true-1", folder_ / "second");
  EXPECT_EQ(read(folder_ / "first/weights.safetensors"), read(folder_ / "second/weights.safetensors"));
  EXPECT_EQ(read(folder_ / "first/metrics.csv"), read(folder_ / "second/metrics.csv"));
}

TEST_F(Program, WorkersChangeNothingButWhoReads) {
  ASSERT_EQ(fit("--precision 32-true --model mlp --max-epochs 2 --output none").status, 0);
  ASSERT_EQ(fit("--precision 32-true --model mlp --max-epochs 2 --num-workers 3 --output three").status, 0);
  EXPECT_THAT(read(folder_ / "three/config.yaml"), HasSubstr("num_workers: 3 "));
  EXPECT_EQ(read(folder_ / "none/weights.safetensors"), read(folder_ / "three/weights.safetensors"));
  EXPECT_EQ(read(folder_ / "none/metrics.csv"), read(folder_ / "three/metrics.csv"));
}

std::vector<std::string> precisions_of(const nlohmann::json& results) {
  std::vector<std::string> names;
  for (const auto& result : results) names.push_back(result["precision"]);
  return names;
}

TEST_F(Program, AllTrainsEveryModeInAProcessOfItsOwn) {
  const Outcome outcome =
      fit("--precision all --model mlp --max-steps 2 --output runs_of_all --json all.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto results = nlohmann::json::parse(read(folder_ / "all.json"));
  ASSERT_EQ(precisions_of(results), trained_modes());
  for (const auto& result : results) {
    EXPECT_EQ(result["steps"], 2);
    EXPECT_TRUE(fs::exists(folder_ / result["run_folder"].get<std::string>() / "weights.safetensors"));
  }
}

TEST_F(Program, AllLeavesOutWhatAdamWCannotTrain) {
  const Outcome outcome =
      fit("--precision all --model mlp --optimizer adamw --max-steps 1 --output all --json all.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::string warnings;
  for (const std::string& mode : trained_modes())
    if (has_fp16_weights(mode))
      warnings += "mantissa: warning: " + mode + " is left out: [^\n]*epsilon[^\n]*\n";
  EXPECT_THAT(outcome.err, MatchesRegex(warnings));
  std::vector<std::string> rest = trained_modes();
  std::erase_if(rest, has_fp16_weights);
  EXPECT_EQ(precisions_of(nlohmann::json::parse(read(folder_ / "all.json"))), rest);
  EXPECT_FALSE(fs::exists(folder_ / "all/16-true"));
  const Outcome scaled =
      fit("--precision all --model mlp --loss-scale 128 --max-steps 1 --output scaled --json scaled.json");
  ASSERT_EQ(scaled.status, 0) << scaled.err;
  EXPECT_THAT(
      scaled.err,
      HasSubstr("mantissa: warning: bf16-mixed is left out: precision 'bf16-mixed' with --loss-scale"));
  rest = trained_modes();
  std::erase_if(rest, [](const std::string& name) {
    const PrecisionTraits& traits = find_mode(name).traits;
    return !traits.scales_loss && traits.gradients != Format::kFloat16;
  });
  EXPECT_EQ(precisions_of(nlohmann::json::parse(read(folder_ / "scaled.json"))), rest);
}

constexpr const char* kWaitForChild =
    "for i in $(seq 500); do child=$(cat /proc/$pid/task/$pid/children); [ -n \"$child\" ] && break; sleep "
    "0.02; done; ";

TEST_F(Program, AModeThatDiesDoesNotTakeTheOthersAlong) {
  if (!fs::exists("/proc/self/task/" + std::to_string(getpid()) + "/children"))
    GTEST_SKIP() << "this kernel does not list a process's children";
  const Outcome outcome = run(
      "fit --device cpu --quiet --precision all --model mlp --max-steps 1000 --output all --json all.json & "
      "pid=$!; " +
      std::string(kWaitForChild) + "kill -KILL $child; wait $pid");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("mantissa: error: --precision 32-true: its process was ended by signal 9"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("64-true"), HasSubstr("bf16-true")));
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "all.json")).size(), trained_modes().size() - 1);
}

TEST_F(Program, SigtermEndsAllModesCleanlyWithStatus143) {
  const Outcome outcome = run(
      "fit --device cpu --model mlp --precision all --max-epochs 100000 --lr 0 --output all --json all.json "
      "2>progress.txt & pid=$!; for i in $(seq 300); do grep -q 'epoch 1/' progress.txt && break; sleep 0.1; "
      "done; kill -TERM $pid; wait $pid");
  EXPECT_EQ(outcome.status, 143);
  const auto results = nlohmann::json::parse(read(folder_ / "all.json"));
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0]["interrupted_by"], 15);
  EXPECT_TRUE(fs::exists(folder_ / "all/32-true/weights.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "all/64-true"));
}

TEST_F(Program, AnErrorOfAChildIsTheProgramsError) {
  std::string others;
  for (const std::string& mode : trained_modes())
    if (mode != "32-true") others += (others.empty() ? "" : ", ") + mode;
  expect_error(fit("--precision all --data idx:absent --json all.json"), 1,
               {"--precision 32-true: ", "absent", "(failed too: " + others + ")"});
  expect_error(fit("--precision all --gradient-clip-algorithm none"), 2, {"norm, value"});
}

TEST_F(Program, CtrlCEndsCleanlyWithStatus130) {
  const Outcome outcome =
      run("fit --device cpu --max-epochs 100000 --lr 0 --output run 2>progress.txt & pid=$!; "
          "for i in $(seq 300); do grep -q 'epoch 1/' progress.txt && break; sleep 0.1; done; kill -INT "
          "$pid; wait $pid");
  EXPECT_EQ(outcome.status, 130);
  EXPECT_TRUE(fs::exists(folder_ / "run/weights.safetensors"));
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "run/result.json"))["interrupted_by"], 2);
}

TEST_F(Program, AClosedTerminalEndsCleanlyWithStatus129) {
  const Outcome outcome =
      run("fit --device cpu --max-epochs 100000 --lr 0 --output run 2>progress.txt & pid=$!; "
          "for i in $(seq 300); do grep -q 'epoch 1/' progress.txt && break; sleep 0.1; done; kill -HUP "
          "$pid; wait $pid");
  EXPECT_EQ(outcome.status, 129);
  EXPECT_TRUE(fs::exists(folder_ / "run/weights.safetensors"));
}

TEST_F(Program, OutputThatNobodyTakesLosesNoTraining) {
  run("fit --device cpu --model mlp --max-epochs 3 --output run 2>&1 | head -n 1");
  EXPECT_TRUE(fs::exists(folder_ / "run/weights.safetensors"));
  const Outcome full = fit("--model mlp --max-steps 1 --output full --json full.json >/dev/full");
  EXPECT_EQ(full.status, 1);
  EXPECT_THAT(full.err, HasSubstr("mantissa: error: standard output cannot be written: No space left"));
  EXPECT_TRUE(fs::exists(folder_ / "full/weights.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "full.json"));
  EXPECT_EQ(run("modes >/dev/full").status, 1);
  EXPECT_THAT(run("modes | true").err, testing::IsEmpty());
}

}  // namespace
}  // namespace mantissa::cli::fit_test
