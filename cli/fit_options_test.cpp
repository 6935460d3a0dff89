// Tests of the options of fit by flag and by configuration: layers, defaults, and values that reach the training.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::fit_options_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

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
  EXPECT_THAT(fit(overflow + "--warn-after-skips 3").err, HasSubstr("3 overflows in a row"));
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
  EXPECT_THAT(printed("precision: O2\n", "--amp-level O1"), HasSubstr("give --amp-backend 'apex' with it"));
  EXPECT_THAT(printed("precision: bf16-mixed\namp_backend: apex\n", ""), HasSubstr("choose by --amp-level"));
}

TEST_F(Program, AFlagForThePrecisionReplacesTheFallbackOfAFile) {
  write("recipe.yaml", "precision: 16-mixed\nfallback: bf16-mixed\n");
  const auto modes = [&](const std::string& flags) {
    const std::string all = fit("--config recipe.yaml --print-config " + flags).out;
    const auto value = [&](const std::string& key) {
      const size_t begin = all.find("\n" + key + ": ") + key.size() + 3;
      return all.substr(begin, all.find(' ', begin) - begin);
    };
    return value("precision") + "+" + value("fallback");
  };
  EXPECT_EQ(modes(""), "16-mixed+bf16-mixed");
  for (const char* const same : {"16-mixed", "16"})
    EXPECT_EQ(modes(std::string("--precision ") + same), "16-mixed+bf16-mixed") << "the mode of the file";
  EXPECT_EQ(modes("--precision 16-mixed,32-true"), "16-mixed+32-true");
  EXPECT_EQ(modes("--precision 16 --fallback 32-true"), "16-mixed+32-true");
  EXPECT_EQ(modes("--precision bf16-mixed"), "bf16-mixed+none");
  EXPECT_EQ(modes("--precision all"), "all+none");
  EXPECT_EQ(modes("--precision bf16-mixed,32-true"), "bf16-mixed+32-true");
  EXPECT_EQ(modes("--amp-backend apex --amp-level O1"), "O1+none");
  EXPECT_EQ(modes("--fallback 32-true"), "16-mixed+32-true");
  EXPECT_EQ(modes("--precision bf16-mixed --fallback 64-true"), "bf16-mixed+64-true");
  expect_error(fit("--precision bf16-mixed --fallback bf16-mixed"), 2, {"bf16-mixed is named twice"});
  write("recipe.yaml", "precision: [16-mixed, bf16-mixed]\n");
  EXPECT_EQ(modes("--precision 16-mixed"), "16-mixed+bf16-mixed");
  EXPECT_EQ(modes("--precision bf16-mixed"), "bf16-mixed+none");
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

TEST_F(Program, ASeedHas64BitsAndNoSign) {
  const auto seed = [&](const std::string& arguments) {
    const Outcome outcome = fit(arguments + " --print-config");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    write("printed.yaml", outcome.out);
    EXPECT_EQ(fit("--config printed.yaml --print-config").out, outcome.out);
    const size_t at = outcome.out.find("\nseed: ") + 7;
    return outcome.out.substr(at, outcome.out.find(' ', at) - at);
  };
  for (const char* text : {"0", "9223372036854775808", "18446744073709551615"}) {
    EXPECT_EQ(seed(std::string("--seed ") + text), text);
    write("seed.yaml", std::string("seed: ") + text + "\n");
    EXPECT_EQ(seed("--config seed.yaml"), text);
  }
  const std::string range = "choose a whole number from 0 to 18446744073709551615";
  expect_error(fit("--seed -1"), 2, {"--seed", "'-1' is out of range", range});
  expect_error(run("generate run --prompt a --seed -1"), 2, {"--seed", "'-1' is out of range", range});
  write("negative.yaml", "seed: -2\n");
  expect_error(fit("--config negative.yaml"), 2, {"negative.yaml:1:", "'seed'", "is out of range", range});
  expect_error(fit("--seed 18446744073709551616"), 2,
               {"--seed", "'18446744073709551616' is out of range", range});
  write("large.yaml", "model: mlp\nseed: 18446744073709551616\n");
  expect_error(fit("--config large.yaml"), 2, {"large.yaml:2:", "'seed'", "is out of range", range});
  write("word.yaml", "seed: much\n");
  expect_error(fit("--config word.yaml"), 2, {"'seed' must be a whole number from 0", "got 'much'"});
}

TEST_F(Program, ARunWithTheLargestSeedRepeatsAndResumes) {
  const std::string words = "--model mlp --logger jsonl,tensorboard --seed 18446744073709551615 ";
  const auto weights = [&](const std::string& folder) {
    return read(folder_ / folder / "weights.safetensors");
  };
  ASSERT_EQ(fit(words + "--lr-schedule constant --max-steps 6 --output whole").status, 0);
  ASSERT_EQ(fit(words + "--lr-schedule constant --max-steps 3 --output halves").status, 0);
  const Outcome resumed = run("resume halves --device cpu --quiet --max-steps 6");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(resumed.err, "");
  EXPECT_EQ(weights("halves"), weights("whole"));
  ASSERT_EQ(fit("--model mlp --seed 1 --lr-schedule constant --max-steps 6 --output other").status, 0);
  EXPECT_NE(weights("other"), weights("whole"));
}

TEST_F(Program, OfAFlagThatIsGivenTwiceTheLastCounts) {
  const std::string once = fit("--lr 0.5 --seed 7 --model mlp --no-transactional --print-config").out;
  const Outcome twice =
      fit("--lr 1 --lr 0.5 --seed=3 --seed 7 --model convnet --model=mlp --transactional "
          "--no-transactional --print-config --print-config --quiet");
  EXPECT_EQ(twice.status, 0) << twice.err;
  EXPECT_EQ(twice.out, once);
  write("a.yaml", "lr: 3\n");
  write("b.yaml", "lr: 0.25\n");
  EXPECT_THAT(fit("--config a.yaml --config b.yaml --print-config").out, HasSubstr("lr: 0.25 "));
  ASSERT_EQ(fit("--model mlp --max-steps 1 --output first --output run").status, 0);
  EXPECT_FALSE(fs::exists(folder_ / "first"));
  const Outcome sorted = run("inspect run/weights.safetensors --no-values --sort name --sort bytes");
  EXPECT_EQ(sorted.status, 0) << sorted.err;
  // A list keeps all values.
  const Outcome both = run("inspect run/weights.safetensors --no-values --filter '*weight' --filter '*bias'");
  EXPECT_THAT(both.out, AllOf(HasSubstr("weight"), HasSubstr("bias")));
  expect_error(run("resume run another"), 2, {"'another' is not an option of"});
}

TEST_F(Program, AnOptimizerWithMomentumKeepsItsDefault) {
  write("corpus.txt", std::string(2000, 'a'));
  const auto momentum = [&](const std::string& flags) {
    const Outcome outcome = fit("--print-config " + flags);
    EXPECT_EQ(outcome.err, "") << flags;
    const size_t begin = outcome.out.find("\nmomentum: ") + 11;
    return std::stod(outcome.out.substr(begin));
  };
  for (const std::string data : {"", "--data text:corpus.txt "}) {
    EXPECT_EQ(momentum(data + "--optimizer sgd"), data.empty() ? 0.9 : 0);
    EXPECT_EQ(momentum(data + "--optimizer sgd8bit"), 0.9);
    for (const std::string muon : {"muon", "muon8bit"}) {
      EXPECT_EQ(momentum(data + "--optimizer " + muon), 0.95);
      EXPECT_EQ(momentum(data + "--momentum 0 --optimizer " + muon), 0);
    }
  }
}

TEST_F(Program, OneModeIsOfferedWhereARunContinues) {
  EXPECT_THAT(run("fit --help").out, HasSubstr("or all: every mode"));
  for (const char* command : {"resume", "validate", "test", "predict"})
    EXPECT_THAT(run(std::string(command) + " --help").out,
                AllOf(HasSubstr("a mode of `mantissa modes`"), testing::Not(HasSubstr("or all"))));
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
  const Outcome told =
      fit("--precision O2 --loss-scale dynamic --init-scale 1024 --growth-factor 1.5 --backoff-factor 0.125 "
          "--growth-interval 30 --min-scale 0.5 --max-scale 4096 --hysteresis-steps 2 --warn-after-skips 0 "
          "--keep-batchnorm-fp32 false --master-weights false --float32-matmul-precision highest "
          "--on-overflow retry --transactional "
          "--trace-nonfinite --model resnet-tiny --print-config");
  ASSERT_EQ(told.status, 0) << told.err;
  for (const char* line :
       {"precision: O2 ", "loss_scale: dynamic ", "init_scale: 1024 ", "growth_factor: 1.5 ",
        "backoff_factor: 0.125 ", "growth_interval: 30 ", "min_scale: 0.5 ", "max_scale: 4096 ",
        "hysteresis_steps: 2 ", "warn_after_skips: 0 ", "keep_batchnorm_fp32: false ",
        "master_weights: false ", "float32_matmul_precision: highest ", "on_overflow: retry ",
        "transactional: true ", "trace_nonfinite: true "})
    EXPECT_THAT(told.out, HasSubstr(line));
  EXPECT_THAT(fit("--precision O2 --min-loss-scale 2 --print-config").out, HasSubstr("min_scale: 2 "));
  write("apex.yaml", "precision: O2\nmax_loss_scale: 2048\n");
  EXPECT_THAT(fit("--config apex.yaml --print-config").out, HasSubstr("max_scale: 2048 "));
  write("twice.yaml", "precision: O2\nmax_loss_scale: 2048\nmax_scale: 4096\n");
  EXPECT_THAT(fit("--config twice.yaml").err, HasSubstr("twice.yaml:3: key 'max_scale' is listed twice"));
  write("told.yaml", told.out);
  EXPECT_EQ(fit("--config told.yaml --print-config").out, told.out);
  EXPECT_EQ(fit("--config told.yaml --max-steps 1").status, 0);
}

}  // namespace
}  // namespace mantissa::cli::fit_options_test
