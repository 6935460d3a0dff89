// The program as a user runs it: exit status, one-line errors, files left behind.
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

struct Outcome {
  int status = -1;
  std::string out, err;
};

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("mantissa_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Outcome run(const std::string& arguments) const {
    const std::string command =
        "cd '" + folder_.string() + "' && { " MANTISSA_PROGRAM " " + arguments + "; } >out.txt 2>err.txt";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read(folder_ / "out.txt"),
            read(folder_ / "err.txt")};
  }
  /// Runs `mantissa fit`, on the CPU and quietly.
  Outcome fit(const std::string& arguments) const { return run("fit --device cpu --quiet " + arguments); }

  void write(const std::string& name, const std::string& content) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }

  /// One line on stderr that says all of it, this status, and nothing left but what was there.
  void expect_error(const Outcome& outcome, int status, const std::vector<std::string>& parts) const {
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_THAT(outcome.err, MatchesRegex("mantissa: error: [^\n]*\n"));
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_FALSE(fs::exists(folder_ / "runs")) << "a failed run left its folder";
  }

  fs::path folder_;
};

std::string idx_header(unsigned char type, const std::vector<uint32_t>& sizes) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
  return bytes;
}

TEST_F(Program, WrongWordsExitWithTwo) {
  expect_error(run(""), 2, {"subcommand"});
  expect_error(run("fitt"), 2, {"'fitt' is not a command; did you mean 'fit'?"});
  expect_error(fit("--precision bf17-mixed"), 2,
               {"'bf17-mixed'", "did you mean 'bf16-mixed'?", "allowed: 32-true"});
  expect_error(fit("--model convnett"), 2, {"'convnett'", "did you mean 'convnet'?"});
  expect_error(fit("--model gpt-tiny"), 2, {"gpt-tiny", "--data text:FILE"});
  expect_error(fit("--model gpt-tiny --data digits"), 2, {"cannot read", "mlp, convnet, resnet-tiny"});
  expect_error(fit("--data numbers"), 2, {"'numbers'", "digits, idx:DIR or text:FILE"});
  expect_error(fit("--data idx:"), 2, {"'idx:'"});
  expect_error(fit("--optimizer adam"), 2, {"'adam'", "sgd, adamw"});
  expect_error(fit("--batch-size 0"), 2, {"--batch-size 0", "at least 1"});
  expect_error(fit("--batch-size many"), 2, {"--batch-size", "many"});
  expect_error(fit("--threads 100000"), 2, {"--threads 100000", "cores"});
  expect_error(fit("--max-epochs -1 --max-steps -1"), 2, {"would never end"});
  expect_error(fit("--gradient-clip-algorithm none"), 2, {"norm or value"});
  expect_error(fit("--val-fraction 1"), 2, {"--val-fraction 1"});
  expect_error(run("fit --device warp"), 2, {"'warp'", "auto, cpu, cuda"});
}

TEST_F(Program, WrongConfigurationsNameFileLineKeyAndCure) {
  write("typo.yaml", "model: mlp\nprecison: 32-true\n");
  expect_error(fit("--config typo.yaml"), 2, {"typo.yaml:2:", "'precison'", "did you mean 'precision'?"});
  write("kind.yaml", "batch_size: lots\n");
  expect_error(fit("--config kind.yaml"), 2,
               {"kind.yaml:1:", "'batch_size' must be a whole number, got 'lots'"});
  write("twice.yaml", "lr: 1\nlr: 2\n");
  expect_error(fit("--config twice.yaml"), 2, {"twice.yaml:2:", "a second time"});
  write("list.yaml", "- a\n- b\n");
  expect_error(fit("--config list.yaml"), 2, {"list.yaml", "must be a map"});
  write("broken.yaml", "model: [mlp\n");
  expect_error(fit("--config broken.yaml"), 2, {"broken.yaml:", "not YAML"});
  expect_error(fit("--config absent.yaml"), 1, {"absent.yaml", "existing YAML file"});
}

TEST_F(Program, BadFilesExitWithOneAndLeaveNothing) {
  expect_error(fit("--data idx:absent"), 1, {"absent"});
  expect_error(fit("--data text:absent.txt"), 1, {"absent.txt"});
  write("empty.txt", "");
  expect_error(fit("--data text:empty.txt"), 1, {"empty.txt"});
  write("short.txt", "too short for one window");
  expect_error(fit("--data text:short.txt"), 1, {"129"});

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
  ASSERT_EQ(fit("--max-steps 1 --output run").status, 0);
  expect_error(fit("--max-steps 1 --output run"), 1, {"already holds a run"});
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
  for (const char* file : {"config.yaml", "metrics.csv", "result.json", "weights.safetensors"})
    EXPECT_TRUE(fs::exists(run / file)) << file;
  EXPECT_THAT(read(run / "metrics.csv"),
              MatchesRegex("epoch,step,train_loss,val_accuracy,val_loss\n0,45,[^\n]+\n1,90,[^\n]+\n"));
}

TEST_F(Program, TheConfigurationOfARunRepeatsIt) {
  ASSERT_EQ(fit("--precision 32-true --model mlp --max-epochs 2 --seed 5 --output first").status, 0);
  ASSERT_EQ(run("fit --quiet --config first/config.yaml --output second").status, 0);
  EXPECT_EQ(read(folder_ / "first/weights.safetensors"), read(folder_ / "second/weights.safetensors"));
  EXPECT_EQ(read(folder_ / "first/metrics.csv"), read(folder_ / "second/metrics.csv"));
}

TEST_F(Program, FlagsOverrideTheConfigurationAndPrintConfigIsComplete) {
  write("run.yaml", "model: mlp\nlr: 0.125\nbatch_size: 8\n");
  const Outcome printed = fit("--config run.yaml --batch-size 4 --print-config");
  ASSERT_EQ(printed.status, 0);
  EXPECT_THAT(printed.out, AllOf(HasSubstr("model: mlp"), HasSubstr("lr: 0.125"), HasSubstr("batch_size: 4"),
                                 HasSubstr("precision: bf16-mixed"), HasSubstr("seed: 1")));
  write("printed.yaml", printed.out);
  EXPECT_EQ(fit("--config printed.yaml --print-config").out, printed.out);
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

TEST_F(Program, AllTrainsEveryModeInAProcessOfItsOwn) {
  const Outcome outcome =
      fit("--precision all --model mlp --max-steps 2 --output runs_of_all --json all.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto results = nlohmann::json::parse(read(folder_ / "all.json"));
  ASSERT_EQ(results.size(), 6U);
  for (const auto& result : results) {
    EXPECT_EQ(result["steps"], 2);
    EXPECT_TRUE(fs::exists(folder_ / result["run_folder"].get<std::string>() / "weights.safetensors"));
  }
}

TEST_F(Program, AnErrorOfAChildIsTheProgramsError) {
  expect_error(fit("--precision all --data idx:absent"), 1, {"absent"});
  expect_error(fit("--precision all --gradient-clip-algorithm none"), 2, {"norm or value"});
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

TEST_F(Program, HelpVersionAndModes) {
  for (const char* arguments : {"--help", "fit --help", "modes --help"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, HasSubstr("--help"));
  }
  for (const char* arguments : {"--version", "fit --version", "modes --version"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, MatchesRegex("mantissa [0-9.]+\n"));
  }
  const Outcome modes = run("modes");
  EXPECT_EQ(modes.status, 0);
  for (const char* mode : {"32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"})
    EXPECT_THAT(modes.out, HasSubstr(mode));
}

}  // namespace
