// Words, files and statuses of every command.
#include <algorithm>
#include <csignal>
#include <map>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

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
  expect_error(fit("--num-workers -1"), 2, {"--num-workers -1", "choose 0 (none) to 1024"});
  write("workers.yaml", "num_workers: -2\n");
  expect_error(fit("--config workers.yaml"), 2, {"--num-workers -2"});
  expect_error(fit("--threads 100000"), 2, {"--threads 100000", "cores"});
  expect_error(fit("--max-epochs -1 --max-steps -1"), 2, {"would never end"});
  expect_error(fit("--gradient-clip-algorithm none"), 2, {"norm, value"});
  expect_error(fit("--epochs 3"), 2,
               {"'--epochs' is no option", "did you mean '--max-epochs'?", "mantissa fit --help"});
  expect_error(fit("--model= --output new"), 2, {"--model ''", "choose from mlp"});
  for (const char* wrong : {"", "abc", "1x"}) {
    const std::string quoted = std::string("'") + wrong + "'";
    expect_error(fit("--lr " + quoted), 2, {"--lr: " + quoted + " is no number; give one"});
    expect_error(fit("--seed " + quoted), 2, {"--seed: " + quoted + " is no whole number; give one"});
    expect_error(fit("--transactional " + quoted), 2, {"--transactional: " + quoted, "choose true or false"});
  }
  for (const char* flag : {"--config", "--json"})
    expect_error(fit(std::string(flag) + "= --model mlp"), 2,
                 {flag, "'' is no file; name one, or leave it out"});
  expect_error(fit("--trace-nonfinite 2"), 2, {"'2' is not one; choose true or false"});
  expect_error(fit("--lr 1e400"), 2,
               {"--lr", "1e400", "out of range; choose 0, or a number between 1e-307 and 1e308"});
  expect_error(fit("--batchsize=3"), 2, {"'--batchsize'", "did you mean '--batch-size'?"});
  expect_error(fit("--max-epochs 99999999999999999999"), 2, {"99999999999999999999", "out of range"});
  expect_error(fit("--lr 1e7"), 2, {"--lr", "choose 0 to 1e6"});
  expect_error(fit("--val-fraction 1"), 2, {"--val-fraction 1"});
  expect_error(run("fit --device warp"), 2, {"'warp'", "auto, cpu, cuda"});
  for (const char* wrong :
       {"--beta1 1", "--beta1 -0.5", "--beta2 1", "--beta2 nan", "--accumulate-grad-batches 0",
        "--gradient-clip-val -1", "--gradient-clip-val nan", "--max-epochs -2", "--max-steps -2"})
    expect_error(fit(std::string(wrong) + " --optimizer adamw --output new"), 2,
                 {wrong, "out of range; choose"});
  expect_error(fit("--precision 16-true --optimizer adamw --output new"), 2,
               {"16-true", "epsilon", "--optimizer sgd", "bf16-true"});
  expect_error(fit("--precision O3 --optimizer fused-adamw"), 2, {"epsilon", "--stochastic-rounding true"});
  expect_error(fit("--precision O2 --master-weights false --optimizer adamw"), 2, {"epsilon"});
  expect_error(fit("--stochastic-rounding true"), 2, {"--optimizer fused-sgd"});
  expect_error(fit("--precision bf16-mixed --loss-scale 128"), 2, {"loss_scale '128'", "only fp16"});
  expect_error(fit("--precision 16-true --loss-scale much"), 2, {"'much' is no scale", "dynamic, none"});
  expect_error(fit("--amp-level O2"), 2, {"amp_backend 'apex'"});
  expect_error(fit("--precision bf16-mixed --amp-backend apex"), 2, {"choose by amp_level"});
  expect_error(fit("--master-weights maybe"), 2, {"'maybe' is not one", "auto, true, false"});
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
  expect_error(fit("--config absent.yaml"), 1, {"absent.yaml", "No such file", "existing YAML file"});
  write("folder/file", "");
  expect_error(fit("--config folder"), 1, {"folder", "it is a folder"});
  write("two.yaml", "model: mlp\n---\nlr: 1\n");
  expect_error(fit("--config two.yaml"), 2, {"two.yaml", "several YAML documents"});
  // In which YAML::LoadAll() finds documents without end.
  write("endless.yaml", "---\n&a b\n? data\n: x\n");
  expect_error(fit("--config endless.yaml"), 2, {"endless.yaml", "must be a map"});
  write("empty_first.yaml", "---\n---\nlr: 1\n");
  expect_error(fit("--config empty_first.yaml"), 2, {"several YAML documents"});
  // Bytes that the run's own config.yaml could not repeat.
  write("latin1.yaml", "lr: 1\ndata: \"idx:\xff\\n\"\n");
  expect_error(fit("--config latin1.yaml"), 2, {"latin1.yaml:2:", "'data'", "write it in UTF-8"});
  // Nothing of a file reaches the terminal that could move its cursor.
  write("bell.yaml", "\"l\\er\": 1\n");
  expect_error(fit("--config bell.yaml"), 2, {"unknown key 'l?r'"});
  write("key.yaml", "model: mlp\n? [a, b]\n: 3\n");
  expect_error(fit("--config key.yaml"), 2, {"key.yaml:2:", "not the name of an option"});
}

TEST_F(Program, WrongScalerNumbersExitWithTwo) {
  const std::string float_names[] = {"init_scale", "growth_factor", "backoff_factor", "min_scale",
                                     "max_scale"},
                    count_names[] = {"growth_interval", "hysteresis_steps", "warn_after_skips"};
  const auto flag_of = [](std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return "--" + name;
  };
  const auto refuses = [&](const std::string& name, const std::string& value, const std::string& because) {
    expect_error(fit(flag_of(name) + "='" + value + "' --output new --precision 16-mixed"), 2,
                 {name, value, because});
  };
  for (const std::string& name : float_names) {
    for (const char* value : {"nan", "inf", "-1"}) refuses(name, value, " is out of range; choose ");
    for (const char* value : {"1e400", "abc", "", "2x", " 2", "0x10"})
      refuses(name, value, " is no number that float64 holds; give one, or auto");
  }
  for (const std::string& name : count_names) {
    refuses(name, "-1", " is out of range; choose ");
    for (const char* value : {"nan", "inf", "1.5", "99999999999999999999", "abc", ""})
      refuses(name, value, " is no whole number that int64 holds; give one, or auto");
  }
  expect_error(fit("--precision 16-mixed --min-scale 8 --max-scale 4 --print-config"), 2,
               {"min_scale 8 is above max_scale 4"});
  expect_error(fit("--growth-factor 4 --print-config"), 2,
               {"'bf16-mixed' with growth_factor 4", "leave it out, or choose 16-mixed"});
  expect_error(fit("--precision 16-true --hysteresis-steps 4"), 2,
               {"hysteresis_steps 4", "loss_scale dynamic"});
  expect_error(fit("--precision O2 --loss-scale 128 --max-scale 1024"), 2, {"max_scale 1024", "128 stays"});
  expect_error(fit("--precision 16-mixed --loss-scale none --warn-after-skips 4"), 2, {"warn_after_skips 4"});
  expect_error(fit("--precision all --growth-factor 1"), 2, {"growth_factor 1 is out of range"});
  expect_error(fit("--precision all --growth-factor abc"), 2, {"growth_factor 'abc' is no number"});
  expect_error(fit("--precision all --loss-scale much"), 2, {"'much' is no scale"});
  expect_error(fit("--precision all --loss-scale none --growth-factor 3"), 2, {"every mode is left out"});
  expect_error(fit("--amp-backend apex --amp-level O4"), 2, {"'O4' is not one; choose from O0, O1, O2, O3"});
  for (const char* wrong : {"hihg", "", "HIGH", "tf32", "1"})
    expect_error(
        fit("--float32-matmul-precision='" + std::string(wrong) + "' --print-config"), 2,
        {"--float32-matmul-precision '" + std::string(wrong) + "'", "choose from highest, high, medium"});
}

TEST_F(Program, WrongScalerKeysNameTheirValue) {
  const auto refuses = [&](const std::string& yaml, const std::vector<std::string>& parts) {
    write("run.yaml", "precision: 16-mixed\n" + yaml + "\n");
    expect_error(fit("--config run.yaml"), 2, parts);
  };
  refuses("growth_factor: [2]", {"run.yaml:2:", "'growth_factor' must be one value, got '[2]'"});
  refuses("growth_factor: {a: 2}", {"run.yaml:2:", "'growth_factor' must be one value"});
  refuses("growth_factor:", {"run.yaml:2:", "'growth_factor' must be one value"});
  refuses("growth_factor: .nan", {"growth_factor '.nan'", "give one, or auto"});
  refuses("growth_factor: true", {"growth_factor 'true'", "give one, or auto"});
  refuses("growth_interval: 1e3", {"growth_interval '1e3'", "no whole number"});
  refuses("grwoth_interval: 5", {"'grwoth_interval'", "did you mean 'growth_interval'?"});
  refuses("float32_matmul_precision: [high]", {"'float32_matmul_precision' must be one value"});
  refuses("float32_matmul_precision: hgih", {"'hgih'", "did you mean 'high'?"});
  refuses("transactional: sometimes", {"'transactional' must be true or false, got 'sometimes'"});
}

TEST_F(Program, TheScalersNumbersReachTheTraining) {
  const std::string overflow = "--precision 16-mixed --model mlp --max-steps 4 --json - --init-scale 1e38 ";
  const auto skipped = [&](const std::string& more) {
    const Outcome outcome = fit(overflow + more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["skipped_steps"].get<int>();
  };
  EXPECT_EQ(skipped(""), 4);
  EXPECT_EQ(skipped("--backoff-factor 1e-36"), 1);
  EXPECT_EQ(skipped("--backoff-factor 1e-36 --hysteresis-steps 3"), 3);
  EXPECT_EQ(skipped("--backoff-factor 1e-36 --min-scale 1e37"), 4);
  EXPECT_EQ(skipped("--backoff-factor 1e-36 --growth-interval 1 --growth-factor 1e36"), 2);
  EXPECT_THAT(fit(overflow + "--warn-after-skips 3").err, HasSubstr("3 steps"));
  write("run.yaml", "backoff_factor: 1.0e-36\nhysteresis_steps: 2\n");
  EXPECT_EQ(skipped("--config run.yaml"), 2);
}

TEST_F(Program, AFlagOfOneGroupReplacesTheFilesOtherOne) {
  const auto printed = [&](const std::string& yaml, const std::string& flags) {
    write("run.yaml", yaml);
    const Outcome outcome = fit("--config run.yaml --print-config " + flags);
    return outcome.out.substr(0, outcome.out.find("loss_scale")) + outcome.err;
  };
  EXPECT_THAT(printed("precision: O2\n", "--amp-backend apex --amp-level O1"), HasSubstr("precision: O1 "));
  EXPECT_THAT(printed("precision: bf16-mixed\n", "--amp-backend apex"), HasSubstr("precision: O2 "));
  const std::string apex = "precision: 16\namp_backend: apex\namp_level: O1\n";
  EXPECT_THAT(printed(apex, "--precision bf16-mixed"), HasSubstr("precision: bf16-mixed "));
  EXPECT_THAT(printed(apex, "--amp-level O3"), HasSubstr("precision: O3 "));
  EXPECT_THAT(printed(apex, "--amp-backend native"), HasSubstr("precision: 16-mixed "));
  EXPECT_THAT(printed(apex, "--precision 16 --amp-backend apex"), HasSubstr("precision: O1 "));
  for (const char* native : {"native", "''"})
    EXPECT_THAT(printed("precision: 64-true\n", std::string("--amp-backend ") + native),
                HasSubstr("precision: 64-true "));
  EXPECT_THAT(printed("precision: O2\n", "--amp-level O1"), HasSubstr("give amp_backend 'apex' with it"));
  EXPECT_THAT(printed("precision: bf16-mixed\namp_backend: apex\n", ""), HasSubstr("choose by amp_level"));
}

TEST_F(Program, WeightsThatAreNotFiniteAreRefusedBeforeTraining) {
  ASSERT_EQ(fit("--precision 32-true --model mlp --max-steps 40 --lr 1e6 --output bad").status, 0);
  for (const char* mode : {"32-true", "16-mixed"})
    expect_error(fit(std::string("--model mlp --weights bad/weights.safetensors --precision ") + mode), 1,
                 {"--weights bad/weights.safetensors: ", " values of '", "more tensors) are nan or inf",
                  "before its run diverged"});
}

TEST_F(Program, AnAliasWarnsOnce) {
  const Outcome outcome = fit("--precision 16 --model mlp --max-steps 1");
  ASSERT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, MatchesRegex("mantissa: warning: precision '16' is [^\n]*'16-mixed'\n"));
  EXPECT_THAT(read(folder_ / "runs/digits-mlp-16-mixed-1/config.yaml"), HasSubstr("precision: 16-mixed"));
}

TEST_F(Program, ALimitOfAHigherLayerReplacesBothOfTheLowerOne) {
  write("epochs.yaml", "max_epochs: 3\n");
  EXPECT_THAT(fit("--config epochs.yaml --max-steps 900 --print-config").out,
              AllOf(HasSubstr("max_epochs: -1 "), HasSubstr("max_steps: 900 ")));
  EXPECT_THAT(fit("--config epochs.yaml --print-config").out,
              AllOf(HasSubstr("max_epochs: 3 "), HasSubstr("max_steps: -1 ")));
  write("both.yaml", "max_epochs: 3\nmax_steps: 10\n");
  EXPECT_THAT(fit("--config both.yaml --print-config").out,
              AllOf(HasSubstr("max_epochs: 3 "), HasSubstr("max_steps: 10 ")));
  EXPECT_THAT(fit("--config both.yaml --max-epochs 5 --print-config").out,
              AllOf(HasSubstr("max_epochs: 5 "), HasSubstr("max_steps: -1 ")));
}

TEST_F(Program, HugeLimitsDoNotOverflow) {
  const Outcome outcome =
      fit("--model mlp --max-epochs 9223372036854775807 --accumulate-grad-batches 9223372036854775807 "
          "--max-steps 1");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(fit("--model mlp --max-epochs 9223372036854775807 --max-steps 1").status, 0);
}

TEST_F(Program, ARunThatFailsBeforeItsFirstStepRemovesItsFolder) {
  // Batch norm refuses to train on one image of one pixel: only the first forward pass finds out.
  write("one/a-images-idx3-ubyte", idx_header(8, {2, 1, 1}) + std::string(2, '\1'));
  write("one/a-labels-idx1-ubyte", idx_header(8, {2}) + std::string("\0\1", 2));
  const std::string arguments = "--model resnet-tiny --val-fraction 0.5 --data idx:one";
  expect_error(fit(arguments), 1, {"more than 1 value"});
  expect_error(fit(arguments + " --output new/run"), 1, {"more than 1 value"});
  write("mine/metrics.csv", "kept");
  expect_error(fit(arguments + " --output mine"), 1, {"already holds a run's metrics.csv"});
  EXPECT_EQ(read(folder_ / "mine/metrics.csv"), "kept");
}

// The second must not take the first one's files along when it gives up.
TEST_F(Program, OfTwoRunsInOneFolderOneIsWholeAndOneIsRefused) {
  for (int i = 0; i < 6; ++i) {
    const std::string name = "both" + std::to_string(i),
                      words = "fit --device cpu --quiet --model mlp --max-steps 20 --output " + name;
    run(words + " 2>first.txt & pid=$!; " MANTISSA_PROGRAM " " + words +
        " 2>second.txt; echo $? >second.status; wait $pid; echo $? >first.status");
    const std::string first = read(folder_ / "first.status"), second = read(folder_ / "second.status");
    EXPECT_EQ(std::set({first, second}), std::set<std::string>({"0\n", "1\n"})) << first << second;
    EXPECT_THAT(read(folder_ / (first == "0\n" ? "second.txt" : "first.txt")),
                MatchesRegex("mantissa: error: [^\n]*(is in use by process|already holds a run's)[^\n]*\n"));
    for (const char* file :
         {"config.yaml", "metrics.csv", "result.json", "weights.safetensors", "checkpoints"})
      EXPECT_TRUE(fs::exists(folder_ / name / file)) << file;
    EXPECT_FALSE(fs::exists(folder_ / name / ".lock"));
  }
}

// What a killed process has left of its lock is no run.
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
  // Root may write anywhere by its permissions, but not here.
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
  EXPECT_THAT(read(folder_ / "first/config.yaml"), testing::Not(HasSubstr("output")));
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

TEST_F(Program, FlagsOverrideTheConfigurationAndPrintConfigIsComplete) {
  write("run.yaml", "model: mlp\nlr: 0.125\nbatch_size: 8\nmomentum: 0.30000000000000004\n");
  const Outcome printed = fit("--config run.yaml --batch-size 4 --print-config");
  ASSERT_EQ(printed.status, 0);
  EXPECT_THAT(printed.out,
              AllOf(HasSubstr("model: mlp"), HasSubstr("lr: 0.125"), HasSubstr("batch_size: 4"),
                    HasSubstr("momentum: 0.30000000000000004 "), HasSubstr("weight_decay: 0.0005 "),
                    HasSubstr("precision: bf16-mixed"), HasSubstr("seed: 1")));
  write("printed.yaml", printed.out);
  EXPECT_EQ(fit("--config printed.yaml --print-config").out, printed.out);
  write("nan.yaml", "lr: .nan\n");
  expect_error(fit("--config nan.yaml --print-config"), 2, {"--lr nan is out of range"});
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

TEST_F(Program, AllLeavesOutWhatAdamWCannotTrain) {
  const Outcome outcome =
      fit("--precision all --model mlp --optimizer adamw --max-steps 1 --output all --json all.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, MatchesRegex("mantissa: warning: 16-true is left out: [^\n]*epsilon[^\n]*\n"));
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "all.json")).size(), 5U);
  EXPECT_FALSE(fs::exists(folder_ / "all/16-true"));
  const Outcome scaled =
      fit("--precision all --model mlp --loss-scale 128 --max-steps 1 --output scaled --json scaled.json");
  ASSERT_EQ(scaled.status, 0) << scaled.err;
  EXPECT_THAT(scaled.err,
              HasSubstr("mantissa: warning: bf16-mixed is left out: precision 'bf16-mixed' with loss_scale"));
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "scaled.json")).size(), 2U);
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
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "all.json")).size(), 5U);
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
  expect_error(fit("--precision all --data idx:absent --json all.json"), 1,
               {"--precision 32-true: ", "absent", "(failed too: 64-true, 16-mixed"});
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

TEST_F(Program, ApexFlagsNameTheirLevel) {
  EXPECT_THAT(fit("--amp-backend apex --print-config").out,
              AllOf(HasSubstr("precision: O2 "), HasSubstr("amp_backend: native ")));
  write("old.yaml", "precision: 16\namp_backend: apex\namp_level: O1\n");
  EXPECT_THAT(fit("--config old.yaml --print-config").out, HasSubstr("precision: O1 "));
  for (const char* level : {"O0", "O1", "O2", "O3"}) {
    const Outcome outcome =
        fit(std::string("--max-epochs 2 --amp-backend apex --json - --amp-level ") + level);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_GT(nlohmann::json::parse(outcome.out)["val_accuracy"], 0.8) << level;
  }
}

TEST_F(Program, AFlagWithoutEffectIsWarnedOf) {
  const Outcome outcome = fit("--classes 3 --beta1 0.5 --momentum 0.5 --print-config");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("--classes has no effect with --data digits"),
                                 HasSubstr("--beta1 has no effect with --optimizer sgd"),
                                 testing::Not(HasSubstr("--momentum"))));
  write("complete.yaml", outcome.out);
  EXPECT_THAT(fit("--config complete.yaml --print-config").err, testing::IsEmpty());
  const std::string saving = "--every-n-train-steps 5 --save-top-k 2 --monitor val_accuracy ",
                    stopping = "--patience 2 --min-delta 0.1 ";
  const std::string in_vain =
      fit(saving + stopping + "--enable-checkpointing false --max-steps 0 --print-config").err;
  for (const char* flag : {"--every-n-train-steps", "--save-top-k", "--monitor"})
    EXPECT_THAT(in_vain, HasSubstr(std::string(flag) + " has no effect with --enable-checkpointing false"));
  for (const char* flag : {"--patience", "--min-delta"})
    EXPECT_THAT(in_vain, HasSubstr(std::string(flag) + " has no effect with no --early-stopping"));
  EXPECT_EQ(fit(saving + stopping + "--early-stopping val_loss --print-config").err, "");
}

TEST_F(Program, AWarmUpThatTheRunCutsShortIsWarnedOf) {
  const std::string warning =
      "mantissa: warning: --warmup-steps 3 is more than half of the run's 4 steps; the learning rate rises "
      "over 2\n";
  EXPECT_EQ(fit("--model mlp --max-steps 4 --warmup-steps 3").err, warning);
  EXPECT_EQ(fit("--model mlp --max-steps 4 --warmup-steps 2").err, "");
  EXPECT_EQ(fit("--model mlp --max-steps 4").err, "") << "the recipe's own is for runs of any length";
}

TEST_F(Program, OneModeIsOfferedWhereARunGoesOn) {
  EXPECT_THAT(run("fit --help").out, HasSubstr("or all: every mode"));
  for (const char* command : {"resume", "validate", "test", "predict"})
    EXPECT_THAT(run(std::string(command) + " --help").out,
                AllOf(HasSubstr("a mode of `mantissa modes`"), testing::Not(HasSubstr("or all"))));
}

TEST_F(Program, OptionsOfTheModeWithoutEffectAreWarnedOf) {
  const auto warning = [&](const std::string& arguments) {
    const Outcome outcome = fit(arguments + " --print-config");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    write("printed.yaml", outcome.out);
    EXPECT_EQ(fit("--config printed.yaml --print-config").err, "") << "a complete file says nothing in vain";
    return outcome.err;
  };
  const auto in_vain = [](const std::string& flag, const std::string& because) {
    return MatchesRegex("mantissa: warning: " + flag + " has no effect with " + because + "[^\n]*\n");
  };
  for (const char* mode : {"bf16-mixed", "32-true", "16-true", "O3", "16-mixed --loss-scale none"})
    EXPECT_THAT(warning(std::string("--model resnet-tiny --transactional true --precision ") + mode),
                in_vain("--transactional", "--precision [^ ]*, which skips no step"));
  EXPECT_THAT(warning("--model mlp --transactional true --precision O2"),
              in_vain("--transactional", "--model mlp, which has no batch norm"));
  EXPECT_EQ(warning("--model resnet-tiny --transactional true --precision 16-true --loss-scale 128"), "");
  EXPECT_EQ(warning("--model mlp --transactional false"), "");
  const std::string rounding = "--optimizer fused-adamw --stochastic-rounding true --precision ";
  for (const char* mode :
       {"32-true", "64-true", "16-mixed", "bf16-mixed", "O0", "O1", "O2", "bf16-true --master-weights true"})
    EXPECT_THAT(warning(rounding + mode),
                in_vain("--stochastic-rounding", "--precision [^ ]*, whose optimizer"));
  for (const char* mode : {"16-true", "bf16-true", "O3", "O2 --master-weights false", "all"})
    EXPECT_EQ(warning(rounding + mode), "") << mode;
  for (const char* mode : {"64-true", "16-mixed", "bf16-true"})
    EXPECT_THAT(warning(std::string("--float32-matmul-precision high --precision ") + mode),
                in_vain("--float32-matmul-precision", "--precision [^ ]*, whose products"));
  for (const char* mode : {"32-true", "O0", "all"})
    EXPECT_EQ(warning(std::string("--float32-matmul-precision high --precision ") + mode), "") << mode;
}

TEST_F(Program, EveryOptionIsInHelpAndConfigurationAndComesBack) {
  const std::string complete = fit("--print-config").out, help = run("fit --help").out;
  std::istringstream lines(complete);
  int options = 0;
  for (std::string line; std::getline(lines, line); ++options) {
    std::string flag = "--" + line.substr(0, line.find(':'));
    std::replace(flag.begin(), flag.end(), '_', '-');
    EXPECT_THAT(help, testing::ContainsRegex("  " + flag + "[ ,]"));
  }
  EXPECT_GT(options, 40);
  const Outcome told = fit(
      "--precision O2 --loss-scale dynamic --init-scale 1024 --growth-factor 1.5 --backoff-factor 0.125 "
      "--growth-interval 30 --min-scale 0.5 --max-scale 4096 --hysteresis-steps 2 --warn-after-skips 0 "
      "--keep-batchnorm-fp32 false --master-weights false --float32-matmul-precision highest --transactional "
      "true --trace-nonfinite true --model resnet-tiny --print-config");
  ASSERT_EQ(told.status, 0) << told.err;
  for (const char* line :
       {"precision: O2 ", "loss_scale: dynamic ", "init_scale: 1024 ", "growth_factor: 1.5 ",
        "backoff_factor: 0.125 ", "growth_interval: 30 ", "min_scale: 0.5 ", "max_scale: 4096 ",
        "hysteresis_steps: 2 ", "warn_after_skips: 0 ", "keep_batchnorm_fp32: false ",
        "master_weights: false ", "float32_matmul_precision: highest ", "transactional: true ",
        "trace_nonfinite: true "})
    EXPECT_THAT(told.out, HasSubstr(line));
  EXPECT_THAT(fit("--precision O2 --min-loss-scale 2 --print-config").out, HasSubstr("min_scale: 2 "));
  write("apex.yaml", "precision: O2\nmax_loss_scale: 2048\n");
  EXPECT_THAT(fit("--config apex.yaml --print-config").out, HasSubstr("max_scale: 2048 "));
  write("twice.yaml", "precision: O2\nmax_loss_scale: 2048\nmax_scale: 4096\n");
  EXPECT_THAT(fit("--config twice.yaml").err,
              HasSubstr("twice.yaml:3: key 'max_scale' stands here a second"));
  write("told.yaml", told.out);
  EXPECT_EQ(fit("--config told.yaml --print-config").out, told.out);
  EXPECT_EQ(fit("--config told.yaml --max-steps 1").status, 0);
}

/// The bytes of a file, so that it can hold values that no training makes.
std::string safetensors(const std::string& header, const std::string& data) {
  std::string text = header;
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

/// A file of float32 zeros, without them: who wants them resizes the file.
std::string header_of_zeros(uint64_t bytes) {
  return safetensors(R"({"w":{"dtype":"F32","shape":[)" + std::to_string(bytes / 4) +
                         R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}",
                     "");
}
std::string zeros(uint64_t bytes) { return header_of_zeros(bytes) + std::string(bytes, '\0'); }

const std::string kRareValues =
    safetensors(R"({"__metadata__":{"by":"hand\u001b[31m"},)"
                R"("block.bias":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},)"
                R"("block.mask":{"dtype":"BOOL","shape":[2],"data_offsets":[6,8]},)"
                R"("block.weight":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]},)"
                R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[12,12]},)"
                R"("scale":{"dtype":"F8_E4M3","shape":[],"data_offsets":[12,13]}})",
                std::string("\x00\x3c\x01\x00\x00\x7c"
                            "\x01\x00"
                            "\xc0\x7f\x80\x3f"
                            "\x38",
                            13));

TEST_F(Program, InspectShowsWhatAFileHolds) {
  write("rare.safetensors", kRareValues);
  const Outcome table = run("inspect rare.safetensors");
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("rare.safetensors: safetensors, 5 tensors, 8 elements, 13 bytes\n"));
  EXPECT_THAT(table.out, HasSubstr("metadata: by: hand?[31m\n"));
  EXPECT_THAT(table.out,
              testing::ContainsRegex("block\\.bias +F16 +\\[3\\] +6 +5\\.9605e-08 +1 .* 0 +1 +0 +1\n"));
  EXPECT_THAT(table.out,
              testing::ContainsRegex("block\\.weight +BF16 +\\[2, 1\\] +4 +1 +1 +1 +0 +1 +0 +0 +0\n"));
  EXPECT_THAT(table.out, testing::ContainsRegex("empty +F32 +\\[0, 4\\] +0 +- +- +- +- +0 +0 +0 +0\n"));

  const auto json = nlohmann::json::parse(run("inspect --json rare.safetensors").out);
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["metadata"]["by"], "hand\x1b[31m");
  EXPECT_EQ(json[0]["tensors"][0]["inf"], 1);
  EXPECT_EQ(json[0]["tensors"][0]["denormal"], 1);
  EXPECT_EQ(json[0]["tensors"][1]["mean"], 0.5);
  EXPECT_EQ(json[0]["tensors"][2]["nan"], 1);
  EXPECT_EQ(json[0]["tensors"][3]["min"], nullptr);
  EXPECT_EQ(json[0]["totals"]["F16"]["bytes"], 6);
  EXPECT_EQ(json[0]["totals"].size(), 5U);

  const Outcome quick =
      run("inspect --no-values --sort bytes --filter 'block.*' --filter scale rare.safetensors");
  EXPECT_THAT(quick.out, testing::Not(HasSubstr("min")));
  EXPECT_LT(quick.out.find("block.bias"), quick.out.find("block.weight"));
  EXPECT_LT(quick.out.find("block.weight"), quick.out.find("block.mask"));
  EXPECT_LT(quick.out.find("block.mask"), quick.out.find("scale"));
  EXPECT_THAT(quick.out, testing::Not(HasSubstr("empty")));
  EXPECT_THAT(run("inspect --no-values --json rare.safetensors").out, testing::Not(HasSubstr("nan")));
}

TEST_F(Program, InspectChecksAndRefuses) {
  write("rare.safetensors", kRareValues);
  const Outcome found = run("inspect --check rare.safetensors");
  EXPECT_EQ(found.status, 3);
  EXPECT_EQ(found.err, "mantissa: error: 2 tensors hold nan or inf: block.bias, block.weight\n");
  EXPECT_THAT(found.out, HasSubstr("block.weight"));
  EXPECT_EQ(run("inspect --check --filter scale rare.safetensors rare.safetensors").status, 0);
  expect_error(run("inspect"), 2, {"files is required"});
  expect_error(run("inspect --check --no-values rare.safetensors"), 2, {"--check", "give one of them"});
  expect_error(run("inspect --sort size rare.safetensors"), 2, {"'size'", "name, bytes"});
  expect_error(run("inspect --filter 'blok.*' rare.safetensors"), 1,
               {"'blok.*' is the name of none of the 5"});
  expect_error(run("inspect absent.safetensors"), 1, {"'absent.safetensors'", "No such file"});
  write("cut.safetensors", kRareValues.substr(0, kRareValues.size() - 1));
  const Outcome cut = run("inspect rare.safetensors cut.safetensors");
  expect_error(cut, 1, {"'cut.safetensors'", "truncated"});
  EXPECT_EQ(cut.out, "") << "nothing is shown before all files are known to be whole";
  write("folder/config.json", "{}");
  expect_error(run("inspect folder"), 1, {"holds no *.safetensors"});
}

TEST_F(Program, ConvertCastsRenamesAndSaysWhatIsLost) {
  write("in.safetensors",
        safetensors(
            R"({"__metadata__":{"format":"pt"},"m.norm":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("m.w":{"dtype":"F32","shape":[3],"data_offsets":[4,16]},)"
            R"("m.x":{"dtype":"F32","shape":[1],"data_offsets":[16,20]},)"
            R"("m.y":{"dtype":"I32","shape":[1],"data_offsets":[20,24]}})",
            std::string("\0\0\x80\x3f"  // 1
                        "\0\0\x80\x3f"  // 1
                        "\0\0\x80\x4f"  // 2^32
                        "\0\0\x80\x2f"  // 2^-32
                        "\0\0\x80\x3f"
                        "\7\0\0\0",
                        24)));
  const Outcome done =
      run("convert in.safetensors new/out.safetensors --dtype fp16 --keep-fp32 '*norm' --strip-prefix m. "
          "--rename 'w$=>weight' --rename '^(.)$=>$1$1' --add-prefix 'net$.' --metadata by=us");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("warning: 1 values are too large for their new dtype"));
  EXPECT_THAT(done.out,
              HasSubstr("F32 to F16: 2 tensors, 4 values: 1 overflow, 1 become zero, largest relative "
                        "error of the others 0\n"));
  EXPECT_THAT(done.out, HasSubstr("  net$.weight: 1 overflow, 1 become zero, of 3\n"));
  EXPECT_EQ(done.left, (std::vector<std::string>{"new", "new/out.safetensors"}));
  const auto seen = nlohmann::json::parse(run("inspect --json new/out.safetensors").out)[0];
  EXPECT_EQ(seen["metadata"], (nlohmann::json{{"format", "pt"}, {"by", "us"}}));
  std::map<std::string, std::string> dtypes;
  for (const auto& tensor : seen["tensors"]) dtypes[tensor["name"]] = tensor["dtype"];
  EXPECT_EQ(dtypes,
            (std::map<std::string, std::string>{
                {"net$.norm", "F32"}, {"net$.weight", "F16"}, {"net$.xx", "F16"}, {"net$.yy", "I32"}}));

  write("map.yaml", "'^m\\.': ''\n'^norm$': null\nnothing: something\n");
  const auto json = nlohmann::json::parse(
      run("convert in.safetensors out.safetensors --key-map map.yaml --dtype bf16 --only '*.w' --json").out);
  ASSERT_EQ(json["tensors"].size(), 3U);
  EXPECT_EQ(json["tensors"][0], (nlohmann::json{{"name", "w"},
                                                {"source", "m.w"},
                                                {"source_dtype", "F32"},
                                                {"dtype", "BF16"},
                                                {"values", 3},
                                                {"overflowed", 0},
                                                {"flushed", 0},
                                                {"max_relative_error", 0.0}}));
  EXPECT_EQ(json["tensors"][1]["dtype"], "F32");
  const Outcome dry = run("convert in.safetensors other --dtype fp64 --max-shard-size 8B --dry-run");
  EXPECT_THAT(dry.out, AllOf(HasSubstr("other/model-00003-of-00004.safetensors: 1 tensors, 8 bytes"),
                             HasSubstr("m.w F32 => m.w F64\n")));
  EXPECT_THAT(dry.left, testing::IsEmpty());
}

TEST_F(Program, ConvertToShardsAndBackIsTheSameFile) {
  ASSERT_EQ(fit("--model convnet --max-steps 1 --output run --precision 32-true").status, 0);
  const Outcome shards = run("convert run/weights.safetensors shards --max-shard-size 20kb");
  EXPECT_EQ(shards.status, 0) << shards.err;
  EXPECT_TRUE(fs::exists(folder_ / "shards/model.safetensors.index.json"));
  EXPECT_EQ(run("convert shards back.safetensors").status, 0);
  EXPECT_EQ(read(folder_ / "back.safetensors"), read(folder_ / "run/weights.safetensors"));
  EXPECT_THAT(run("inspect shards").out, HasSubstr("shards: sharded safetensors, "));
  expect_error(run("convert shards shards --max-shard-size 20kb"), 2, {"is the input itself"});
  expect_error(run("convert back.safetensors shards --max-shard-size 20kb"), 1, {"is there already"});
  expect_error(run("convert back.safetensors shards --max-shard-size 20kb --overwrite"), 1,
               {"cannot be replaced in one move"});
  expect_error(run("convert shards back.safetensors"), 1,
               {"'back.safetensors' is there already", "--overwrite"});
  EXPECT_EQ(run("convert shards back.safetensors --dtype fp16 --overwrite").status, 0);
  EXPECT_LT(fs::file_size(folder_ / "back.safetensors"), fs::file_size(folder_ / "run/weights.safetensors"));
  fs::create_hard_link(folder_ / "back.safetensors", folder_ / "link.safetensors");
  expect_error(run("convert back.safetensors link.safetensors --overwrite"), 2, {"is the input itself"});
}

TEST_F(Program, ConvertTakesTheWeightsOfACheckpoint) {
  ASSERT_EQ(fit("--model mlp --max-epochs 2 --save-top-k -1 --output run").status, 0);
  const std::string oldest = "run/checkpoints/epoch=0-step=45", newest = "run/checkpoints/epoch=1-step=90";
  for (const auto& [in, weights] : {std::pair(oldest, oldest), {std::string("run/checkpoints"), newest}}) {
    const Outcome outcome = run("convert " + in + " out.safetensors --overwrite");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(read(folder_ / "out.safetensors") == read(folder_ / weights / "weights.safetensors")) << in;
  }
  EXPECT_FALSE(read(folder_ / oldest / "weights.safetensors") ==
               read(folder_ / newest / "weights.safetensors"));
  expect_error(run("convert " + oldest + " " + oldest + "/weights.safetensors"), 2, {"is the input itself"});
  // A folder of runs has weights below it, and yet no checkpoint.
  for (const char* command : {"inspect .", "convert . out2.safetensors"}) {
    fs::remove(folder_ / "out.safetensors");
    expect_error(run(command), 1, {"folder '.' holds no *.safetensors", "and no checkpoint"});
  }
}

TEST_F(Program, ConvertRefusesBeforeItWrites) {
  write("in.safetensors", kRareValues);
  const auto convert = [&](const std::string& arguments) {
    return run("convert in.safetensors out/new.safetensors " + arguments);
  };
  expect_error(run("convert in.safetensors"), 2, {"out is required"});
  expect_error(run("convert in.safetensors ''"), 2, {"'' is no output"});
  expect_error(convert("--dtype bf17"), 2, {"'bf17'", "did you mean 'bf16'?", "fp64, fp32, fp16"});
  expect_error(convert("--only '*'"), 2, {"--only", "give --dtype"});
  for (const char* size : {"2GX", "GB", "-1GB", "0", "nan", "1e30", "inf", "2 GB", "0.1B"})
    expect_error(convert(std::string("--max-shard-size '") + size + "'"), 2, {size, "is no size"});
  expect_error(convert("--rename block"), 2, {"'block' has no =>"});
  expect_error(convert("--rename '(=>x'"), 2, {"'(' is no regular expression"});
  expect_error(convert("--rename '=>x'"), 2, {"the pattern is empty"});
  expect_error(convert("--metadata by"), 2, {"'by' is no KEY=VALUE"});
  expect_error(convert("--dtype bf16 --only 'head.*'"), 1, {"'head.*' is the name of none"});
  expect_error(convert("--rename 'head=>tail'"), 1, {"the pattern 'head' is in none of the 5 names"});
  expect_error(convert("--strip-prefix model."), 1, {"the pattern 'model.' is in none"});
  expect_error(convert("--rename '.*=>x'"), 1, {"would both be named 'xx'"});
  expect_error(convert("--rename '^.*$=>'"), 1, {"would have no name"});
  expect_error(convert("--rename 'scale=>__metadata__'"), 1, {"__metadata__"});
  expect_error(run("convert in.safetensors in.safetensors --overwrite"), 2, {"is the input itself"});
  expect_error(run("convert absent.safetensors out.safetensors"), 1, {"No such file"});
  expect_error(run("convert in.safetensors in.safetensors/x.safetensors"), 1, {"in.safetensors"});
  write("list.yaml", "- a\n");
  expect_error(convert("--key-map list.yaml"), 2, {"list.yaml", "must be a map"});
  write("deep.yaml", "a: x\nb: [y]\n");
  expect_error(convert("--key-map deep.yaml"), 2, {"deep.yaml:2:", "one pattern and one replacement"});
  write("twice.yaml", "a: x\na: y\n");
  expect_error(convert("--key-map twice.yaml"), 2, {"twice.yaml:2:", "a second time"});
  expect_error(convert("--key-map absent.yaml"), 1, {"absent.yaml", "existing YAML file"});
  write("cut.safetensors", kRareValues.substr(0, kRareValues.size() - 1));
  expect_error(run("convert cut.safetensors out.safetensors"), 1, {"truncated"});
}

TEST_F(Program, ConvertOnAFullDiskLeavesNothing) {
  write("in.safetensors", zeros(1 << 20));
  // Of 512 or 1024 bytes each, as the shell counts: enough for the message, not for a megabyte.
  for (const char* sharded : {"", "--max-shard-size 1MB"})
    expect_error(
        run("--version; ulimit -f 8; trap '' XFSZ; " MANTISSA_PROGRAM " convert in.safetensors new/net " +
            std::string(sharded)),
        1, {"File too large; raise the limit"});
}

// Three times 128 MiB of zeros: the file has a hole instead of blocks, so that it costs no disk.
TEST_F(Program, ConvertAndInspectNeedLittleMemory) {
  const uint64_t bytes = 3ULL << 27;
  write("in.safetensors", header_of_zeros(bytes));
  const uint64_t header = fs::file_size(folder_ / "in.safetensors");
  fs::resize_file(folder_ / "in.safetensors", header + bytes);
  const auto peak_kib = [&](const std::string& arguments) {
    const Outcome outcome =
        run(arguments +
            " >/dev/null & pid=$!; peak=0; while [ -e /proc/$pid/status ]; do "
            "now=$(sed -n 's/VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/$pid/status); "
            "[ \"${now:-0}\" -gt $peak ] && peak=$now; sleep 0.02; done; echo $peak; wait $pid");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return std::atoll(outcome.out.c_str());
  };
  const int64_t least = peak_kib("inspect --no-values in.safetensors");
  for (const char* command : {"inspect in.safetensors", "convert in.safetensors out.safetensors --dtype bf16",
                              "convert in.safetensors out2 --max-shard-size 1MB"}) {
    const int64_t peak = peak_kib(command);
    EXPECT_GT(peak, 0);
    EXPECT_LT(peak - least, 100 << 10) << command;
  }
  EXPECT_EQ(fs::file_size(folder_ / "out.safetensors"), bytes / 2 + 8 + 72);
}

TEST_F(Program, ConvertInterruptedLeavesNothing) {
  const uint64_t bytes = 3ULL << 30;
  write("in.safetensors", header_of_zeros(bytes));
  fs::resize_file(folder_ / "in.safetensors", fs::file_size(folder_ / "in.safetensors") + bytes);
  const Outcome outcome =
      run("convert in.safetensors new/out.safetensors --dtype fp8-e4m3 & pid=$!; for i in $(seq 300); do "
          "ls new/.out* >/dev/null 2>&1 && break; sleep 0.05; done; kill -TERM $pid; wait $pid");
  EXPECT_EQ(outcome.status, 143);
  EXPECT_THAT(outcome.left, testing::IsEmpty());
}

/// Every word that begins with a dash in what `--help` says of options.
std::set<std::string> flags_in_help(const std::string& help) {
  std::set<std::string> flags;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -")) continue;
    std::istringstream names(line.substr(2, line.find(' ', 2) - 2));
    for (std::string name; std::getline(names, name, ',');) flags.insert(name);
  }
  return flags;
}

const std::vector<std::string> kCommands{"fit",   "resume",  "validate", "test",       "predict",
                                         "modes", "inspect", "convert",  "completion", "man"};

TEST_F(Program, CompletionAndManualNameEveryOption) {
  std::map<std::string, std::string> texts;
  for (const char* what : {"completion bash", "completion zsh", "completion fish", "man"}) {
    const Outcome outcome = run(what);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    texts[what] = outcome.out;
  }
  const auto after = [](const std::string& text, const std::string& start) {
    EXPECT_THAT(text, HasSubstr(start));
    return text.substr(std::min(text.find(start), text.size()));
  };
  size_t flags = 0;
  for (const std::string& command : kCommands) {
    const std::string in_bash = after(texts["completion bash"], "    " + command + ")\n");
    const std::string in_zsh = after(texts["completion zsh"], "        " + command + ")\n");
    const std::string in_man = after(texts["man"], ".SS mantissa " + command + "\n");
    const std::string bash_options = in_bash.substr(0, in_bash.find(";;")),
                      zsh_options = in_zsh.substr(0, in_zsh.find(";;")),
                      man_options = in_man.substr(0, in_man.find(".SS", 3));
    for (const std::string& flag : flags_in_help(run(command + " --help").out)) {
      ++flags;
      EXPECT_THAT(bash_options, testing::ContainsRegex("[' ]" + flag + "[' ]")) << command;
      EXPECT_THAT(zsh_options, HasSubstr(flag + "[")) << command;
      EXPECT_THAT(texts["completion fish"],
                  testing::ContainsRegex(
                      "subcommand_from " + command + "' .*" +
                      (flag.starts_with("--") ? "-l " + flag.substr(2) : "-s " + flag.substr(1)) + " "));
      std::string dashes;
      for (const char c : flag) dashes += c == '-' ? "\\-" : std::string(1, c);
      EXPECT_THAT(man_options, HasSubstr("\\fB" + dashes + "\\fR")) << command;
    }
  }
  EXPECT_GT(flags, 70U);
  expect_error(run("completion csh"), 2, {"'csh' is not a shell", "bash, zsh, fish"});
  expect_error(run("completion"), 2, {"shell is required"});
}

TEST_F(Program, BashCompletes) {
  write("words.sh", "source <(" MANTISSA_PROGRAM
                    " completion bash)\nCOMP_WORDS=(mantissa \"$@\")\nCOMP_CWORD=$#\n_mantissa\n"
                    "printf '%s ' \"${COMPREPLY[@]}\"\n");
  const auto complete = [&](const std::string& words) {
    const Outcome outcome = run("--version >/dev/null; bash words.sh " + words);
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  };
  EXPECT_EQ(complete("i"), "inspect ");
  EXPECT_EQ(complete("''"), "fit resume validate test predict modes inspect convert completion man ");
  EXPECT_EQ(complete("--v"), "--version ");
  EXPECT_EQ(complete("inspect --no"), "--no-values ");
  EXPECT_EQ(complete("inspect --no-values --so"), "--sort ");
  EXPECT_EQ(complete("inspect --sort ''"), "name bytes ");
  EXPECT_EQ(complete("inspect fit --no"), "--no-values ");
  EXPECT_EQ(complete("fit --precision bf"), "bf16-mixed bf16-true ");
  EXPECT_EQ(complete("fit --precision a"), "all ");
  EXPECT_EQ(complete("resume --precision a"), " ") << "a run goes on in one mode";
  EXPECT_EQ(complete("fit --model r"), "resnet-tiny ");
  EXPECT_EQ(complete("fit --lr-schedule ''"), "constant cosine ");
  EXPECT_EQ(complete("fit --logger ''"), "csv tensorboard jsonl none ");
  EXPECT_EQ(complete("fit --monitor val"), "val_loss val_accuracy ");
  EXPECT_EQ(complete("fit --amp-level ''"), "O0 O1 O2 O3 ");
  EXPECT_EQ(complete("fit --transactional ''"), "true false ");
  EXPECT_EQ(complete("validate --float32-matmul-precision h"), "highest high ");
  EXPECT_EQ(complete("convert --dtype b"), "bf16 ");
  EXPECT_EQ(complete("fit --max-e"), "--max-epochs ");
  EXPECT_EQ(complete("completion z"), "zsh ");
  EXPECT_EQ(complete("fit --config f"), " ") << "names of files are bash's own default";
  EXPECT_EQ(complete("unknown --"), " ");
}

TEST_F(Program, ScriptsAndManualAreWellFormed) {
  struct Tool {
    const char* name;
    const char* check;
  };
  std::string missing;
  for (const auto& [name, check] :
       {Tool{"groff", "man | groff -man -Tutf8 -ww -z"}, Tool{"zsh", "completion zsh >z; zsh -n z"},
        Tool{"fish", "completion fish >f; fish -n f"},
        Tool{"shellcheck", "completion bash >b; shellcheck -s bash b"}}) {
    if (std::system((std::string("command -v ") + name + " >/dev/null").c_str()) != 0) {
      missing += std::string(" ") + name;
      continue;
    }
    const Outcome outcome = run(check);
    EXPECT_EQ(outcome.status, 0) << name;
    EXPECT_EQ(outcome.out + outcome.err, "") << name;
  }
  if (!missing.empty()) GTEST_SKIP() << "not looked at, for want of:" << missing;
}

TEST_F(Program, HelpVersionAndModes) {
  for (const char* arguments : {"--help", "fit --help", "modes --help", "inspect --help", "convert --help"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, HasSubstr("--help"));
  }
  for (const char* arguments : {"--version", "fit --version", "modes --version", "convert --version"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, MatchesRegex("mantissa [0-9.]+\n"));
  }
  EXPECT_THAT(run("fit --help").out,
              AllOf(HasSubstr("[bf16-mixed]"), HasSubstr("samples a batch [32; text: 16]")));
  const Outcome modes = run("modes");
  EXPECT_EQ(modes.status, 0);
  for (const char* mode : {"32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"})
    EXPECT_THAT(modes.out, HasSubstr(mode));
}

TEST_F(Program, ModesNamesTheTierOfTheCpuKernels) {
  setenv("MANTISSA_CPU_KERNELS", "1", 1);
  setenv("MANTISSA_MAX_ISA", "generic", 1);
  EXPECT_THAT(run("modes").out, HasSubstr("16-bit products on the CPU: kernels of tier generic"));
  setenv("MANTISSA_CPU_KERNELS", "0", 1);
  EXPECT_THAT(run("modes").out, HasSubstr("16-bit products on the CPU: libtorch's own"));
  setenv("MANTISSA_CPU_KERNELS", "1", 1);
  setenv("MANTISSA_MAX_ISA", "avx3", 1);
  EXPECT_THAT(run("modes").err, HasSubstr("MANTISSA_MAX_ISA=avx3: no such tier"));
  unsetenv("MANTISSA_CPU_KERNELS");
  unsetenv("MANTISSA_MAX_ISA");
}

}  // namespace
}  // namespace mantissa::cli
