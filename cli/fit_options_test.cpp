// Tests of the options of fit by flag and by configuration: words, numbers, layers, and options without
// effect.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::fit_options_test {
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
  expect_error(fit("--optimizer adamx"), 2, {"'adamx'", "sgd, adamw"});
  expect_error(fit("--batch-size 0"), 2, {"--batch-size 0", "at least 1"});
  expect_error(fit("--batch-size many"), 2, {"--batch-size", "many"});
  expect_error(fit("--num-workers -1"), 2, {"--num-workers -1", "choose 0 (none) to 1024"});
  write("workers.yaml", "num_workers: -2\n");
  expect_error(fit("--config workers.yaml"), 2, {"--num-workers -2"});
  expect_error(fit("--threads 100000"), 2, {"--threads 100000", "cores"});
  expect_error(fit("--max-epochs -1 --max-steps -1"), 2, {"would never end"});
  expect_error(fit("--gradient-clip-algorithm none"), 2, {"norm, value"});
  expect_error(fit("--epochs 3"), 2,
               {"'--epochs' is not an option", "did you mean '--max-epochs'?", "mantissa fit --help"});
  expect_error(fit("--model= --output new"), 2, {"--model ''", "choose from mlp"});
  for (const char* wrong : {"", "abc", "1x"}) {
    const std::string quoted = std::string("'") + wrong + "'";
    expect_error(fit("--lr " + quoted), 2, {"--lr: " + quoted + " is not a number; give one"});
    expect_error(fit("--seed " + quoted), 2, {"--seed: " + quoted + " is not a whole number; give one"});
  }
  for (const char* flag : {"--config", "--json"})
    expect_error(fit(std::string(flag) + "= --model mlp"), 2,
                 {flag, "'' is not a file; name one, or leave it out"});
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
  expect_error(fit("--precision O3 --optimizer fused-adamw"), 2, {"epsilon", "--stochastic-rounding"});
  expect_error(fit("--precision O2 --master-weights false --optimizer adamw"), 2, {"epsilon"});
  expect_error(fit("--stochastic-rounding"), 2, {"--optimizer fused-sgd"});
  expect_error(fit("--precision bf16-mixed --loss-scale 128"), 2, {"loss_scale '128'", "only fp16"});
  expect_error(fit("--precision 16-true --loss-scale much"), 2, {"'much' is not a scale", "dynamic, none"});
  expect_error(fit("--amp-level O2"), 2, {"amp_backend 'apex'"});
  expect_error(fit("--precision bf16-mixed --amp-backend apex"), 2, {"choose by amp_level"});
  expect_error(fit("--master-weights maybe"), 2, {"'maybe' is not a valid value", "auto, true, false"});
}

TEST_F(Program, WrongConfigurationsNameFileLineKeyAndCure) {
  write("typo.yaml", "model: mlp\nprecison: 32-true\n");
  expect_error(fit("--config typo.yaml"), 2, {"typo.yaml:2:", "'precison'", "did you mean 'precision'?"});
  write("kind.yaml", "batch_size: lots\n");
  expect_error(fit("--config kind.yaml"), 2,
               {"kind.yaml:1:", "'batch_size' must be a whole number, got 'lots'"});
  write("twice.yaml", "lr: 1\nlr: 2\n");
  expect_error(fit("--config twice.yaml"), 2, {"twice.yaml:2:", "is listed twice"});
  write("list.yaml", "- a\n- b\n");
  expect_error(fit("--config list.yaml"), 2, {"list.yaml", "must be a map"});
  write("broken.yaml", "model: [mlp\n");
  expect_error(fit("--config broken.yaml"), 2, {"broken.yaml:", "not YAML"});
  expect_error(fit("--config absent.yaml"), 1, {"absent.yaml", "No such file", "existing YAML file"});
  write("folder/file", "");
  expect_error(fit("--config folder"), 1, {"folder", "it is a folder"});
  write("two.yaml", "model: mlp\n---\nlr: 1\n");
  expect_error(fit("--config two.yaml"), 2, {"two.yaml", "several YAML documents"});
  // YAML::LoadAll() finds an endless number of documents in this text.
  write("endless.yaml", "---\n&a b\n? data\n: x\n");
  expect_error(fit("--config endless.yaml"), 2, {"endless.yaml", "must be a map"});
  write("empty_first.yaml", "---\n---\nlr: 1\n");
  expect_error(fit("--config empty_first.yaml"), 2, {"several YAML documents"});
  // Bytes that the run's own config.yaml could not repeat.
  write("latin1.yaml", "lr: 1\ndata: \"idx:\xff\\n\"\n");
  write("zero.yaml", "model: mlp\noutput: \"run\\0elsewhere\"\n");
  expect_error(fit("--config zero.yaml"), 2, {"zero.yaml:2:", "'output'", "without zero bytes"});
  write("deep.yaml", "model: " + std::string(100'000, '[') + "\n");
  expect_error(fit("--config deep.yaml"), 2, {"deep.yaml"});
  expect_error(fit("--config latin1.yaml"), 2, {"latin1.yaml:2:", "'data'", "write it in UTF-8"});
  // No text of a file that could move the cursor reaches the terminal.
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
  // A value that is not a number is refused by all options; the range differs for each option.
  for (const std::string& name : float_names)
    for (const char* value : {"nan", "-1"}) refuses(name, value, " is out of range; choose ");
  refuses("max_scale", "inf", " is out of range; choose ");
  for (const char* value : {"abc", "", "2x", " 2", "0x10"})
    refuses("growth_factor", value, " is not a number; give one, or auto");
  for (const std::string& name : count_names) refuses(name, "-1", " is out of range; choose ");
  for (const char* value : {"nan", "inf", "1.5", "abc", ""})
    refuses("hysteresis_steps", value, " is not a whole number; give one, or auto");
  refuses("hysteresis_steps", "99999999999999999999", " is out of range: choose a whole number from -9");
  expect_error(fit("--precision 16-mixed --min-scale 8 --max-scale 4 --print-config"), 2,
               {"min_scale 8 is above max_scale 4"});
  expect_error(fit("--growth-factor 4 --print-config"), 2,
               {"'bf16-mixed' with growth_factor 4", "leave it out, or choose 16-mixed"});
  expect_error(fit("--precision 16-true --hysteresis-steps 4"), 2,
               {"hysteresis_steps 4", "loss_scale dynamic"});
  expect_error(fit("--precision O2 --loss-scale 128 --max-scale 1024"), 2,
               {"max_scale 1024", "128 is fixed"});
  expect_error(fit("--precision 16-mixed --loss-scale none --warn-after-skips 4"), 2, {"warn_after_skips 4"});
  expect_error(fit("--precision all --growth-factor 1"), 2, {"growth_factor 1 is out of range"});
  expect_error(fit("--precision all --growth-factor abc"), 2, {"growth_factor 'abc' is not a number"});
  expect_error(fit("--precision all --loss-scale much"), 2, {"'much' is not a scale"});
  expect_error(fit("--precision all --loss-scale none --growth-factor 3"), 2, {"every mode is left out"});
  expect_error(fit("--amp-backend apex --amp-level O4"), 2,
               {"'O4' is not a valid value; choose from O0, O1, O2, O3"});
  for (const char* wrong : {"hihg", "", "HIGH", "tf32", "1"})
    expect_error(fit("--float32-matmul-precision='" + std::string(wrong) + "' --print-config"), 2,
                 {"--float32-matmul-precision '" + std::string(wrong) + "'",
                  "choose from auto, highest, high, medium"});
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
  refuses("growth_interval: 1e3", {"growth_interval '1e3'", "is not a whole number"});
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

TEST_F(Program, ASeedMayBeAnyThatTorchTakes) {
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
  EXPECT_EQ(seed("--seed -1"), "18446744073709551615") << "as Python's torch.manual_seed() has it";
  write("negative.yaml", "seed: -2\n");
  EXPECT_EQ(seed("--config negative.yaml"), "18446744073709551614");
  const std::string range = "choose a whole number from 0 to 18446744073709551615";
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

// Values that would silently become 0 or inf.
TEST_F(Program, NumbersBeyondTheirTypeAreReported) {
  const std::string small = "is out of range: it would become 0 in float64, whose smallest positive number",
                    large = "is out of range: float64 has no number above 1.8e308; give a smaller one";
  for (const auto& [number, problem] : {std::pair("1e-400", small), {"-1e-400", small}, {"1e400", large}}) {
    const std::string quoted = std::string("'") + number + "' " + problem;
    for (const char* name : {"lr", "weight_decay", "min_delta", "gradient_clip_val", "ema_decay"}) {
      std::string flag = std::string("--") + name;
      std::replace(flag.begin(), flag.end(), '_', '-');
      expect_error(fit(flag + "=" + number), 2, {flag, quoted});
      write("number.yaml", std::string("model: mlp\n") + name + ": " + number + "\n");
      expect_error(fit("--config number.yaml"), 2, {"number.yaml:2:", name, quoted});
    }
    for (const char* name : {"growth_factor", "init_scale", "loss_scale"}) {
      write("scale.yaml", std::string("precision: 16-mixed\n") + name + ": " + number + "\n");
      expect_error(fit("--config scale.yaml"), 2, {name, quoted});
    }
    expect_error(fit(std::string("--limit-train-batches=") + number), 2, {"--limit-train-batches", quoted});
  }
  write("plus.yaml", "lr: +1e-400\n");
  expect_error(fit("--config plus.yaml"), 2, {small});
  const std::string whole = "is out of range: choose a whole number from -9223372036854775808 to";
  expect_error(fit("--max-epochs 9223372036854775808"), 2, {"--max-epochs", whole});
  expect_error(fit("--limit-val-batches 9223372036854775808"), 2, {"--limit-val-batches"});
  write("whole.yaml", "batch_size: 99999999999999999999\n");
  expect_error(fit("--config whole.yaml"), 2, {"'batch_size'", whole});
  ASSERT_EQ(fit("--model mlp --max-steps 0 --output run").status, 0);
  expect_error(run("convert run/weights.safetensors out.safetensors --max-shard-size 1e400GB"), 2,
               {"--max-shard-size", large});
}

TEST_F(Program, ASwitchTakesNoValue) {
  const std::string cure = "is a switch and takes no value; write --transactional, or --no-transactional";
  for (const char* wrong : {"--transactional true", "--transactional false", "--transactional yes --seed 3",
                            "--transactional=true", "--transactional=0", "--transactional="})
    expect_error(fit(wrong), 2, {"--transactional", cure});
  expect_error(fit("--no-transactional true"), 2, {"--no-transactional", cure});
  expect_error(run("resume run --channels-last true"), 2,
               {"--channels-last is a switch", "--no-channels-last"});
  expect_error(fit("--trace-nonfinite 2"), 2, {"'2' is not an option of fit"});
  expect_error(fit("--no-transactionl"), 2, {"did you mean '--no-transactional'?"});
  const auto printed = [&](const std::string& arguments) {
    const Outcome outcome = fit(arguments + " --model resnet-tiny --precision 16-mixed --print-config");
    EXPECT_EQ(outcome.err, "");
    const size_t at = outcome.out.find("transactional: ") + 15;
    return outcome.out.substr(at, outcome.out.find(' ', at) - at);
  };
  EXPECT_EQ(printed(""), "false");
  EXPECT_EQ(printed("--transactional"), "true");
  EXPECT_EQ(printed("--transactional --no-transactional"), "false");
  EXPECT_EQ(printed("--no-transactional --transactional"), "true");
  for (const char* text : {"true", "yes", "on"}) {
    write("switch.yaml", std::string("transactional: ") + text + "\n");
    EXPECT_EQ(printed("--config switch.yaml"), "true");
    EXPECT_EQ(printed("--config switch.yaml --no-transactional"), "false");
  }
}

TEST_F(Program, AWordThatIsNearlyOneIsReported) {
  for (const auto& [word, meant] :
       std::vector<std::pair<std::string, std::string>>{{"fp32", "did you mean '32-true' ("},
                                                        {"float32", "did you mean '32-true' ("},
                                                        {"torch.float64", "did you mean '64-true' ("},
                                                        {"double", "did you mean '64-true' ("},
                                                        {"bf16_mixed", "did you mean 'bf16-mixed' ("},
                                                        {"bfloat16-true", "did you mean 'bf16-true' ("},
                                                        {"fp16-mixed", "did you mean '16-mixed' ("},
                                                        {"half-true", "did you mean '16-true' ("},
                                                        {"bf16-mixd", "did you mean 'bf16-mixed'?"}})
    expect_error(fit("--precision " + word), 2,
                 {"precision '" + word + "' is not a mode", meant, "allowed: "});
  for (const char* word : {"fp16", "float16", "half", "FP16"})
    expect_error(fit(std::string("--precision ") + word), 2,
                 {"did you mean '16-mixed' (", " or '16-true' ("});
  for (const char* word : {"mixed", "amp"})
    expect_error(fit(std::string("--precision ") + word), 2, {"'16-mixed' (", " or 'bf16-mixed' ("});
  expect_error(fit("--model resnet"), 2, {"did you mean 'resnet-tiny'?"});
  expect_error(fit("--data digit"), 2, {"did you mean 'digits'?"});
  expect_error(fit("--data txt:a"), 2, {"did you mean 'text'?"});
  expect_error(fit("--optimizer adamx"), 2, {"did you mean 'adamw'?"});
  expect_error(fit("--logger tensorbord"), 2, {"did you mean 'tensorboard'?"});
  expect_error(fit("--callbacks PrecisonMonitor"), 2, {"did you mean 'PrecisionMonitor'?"});
  expect_error(fit("--loss-scale dynamc --precision 16-mixed"), 2, {"did you mean 'dynamic'?"});
  expect_error(fit("--amp-backend apx"), 2, {"did you mean 'apex'?"});
  expect_error(run("fit --device cdua"), 2, {"did you mean 'cuda'?"});
  expect_error(fit("--learning-rate 1"), 2, {"did you mean '--lr'?"});
  expect_error(run("inspect x --sort nmae"), 2, {"did you mean 'name'?"});
  const auto refuses = [&](const std::string& yaml, const std::vector<std::string>& parts) {
    write("run.yaml", yaml);
    expect_error(fit("--config run.yaml"), 2, parts);
  };
  refuses("learning_rate: 1\n", {"run.yaml:1:", "unknown key 'learning_rate'; did you mean 'lr'?"});
  refuses("batch-size: 1\n", {"unknown key 'batch-size'; did you mean 'batch_size'?"});
  refuses("lr:\n", {"'lr' must be a number, got nothing"});
  refuses("zyxw: 1\n", {"unknown key 'zyxw'; `mantissa fit --print-config` lists all keys"});
  refuses("epochs: 1\n", {"unknown key 'epochs'; did you mean 'max_epochs'?"});
  refuses("trainer:\n  max_epoch: 1\n",
          {"unknown key 'trainer'; options must be at the top level", "'max_epochs'"});
  refuses("optimizer:\n  lr: 1\n", {"'optimizer' must be one value", "at the top level", "write 'lr' there"});
}

TEST_F(Program, AWrongVariableOfTheEnvironmentIsAnErrorWhateverTheCommand) {
  const auto with = [&](const std::string& variable, const std::string& arguments) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    const Outcome outcome = run(arguments);
    unsetenv(variable.substr(0, equals).c_str());
    return outcome;
  };
  for (const char* command : {"fit --precision 32-true --print-config", "fit --precision 16-mixed", "modes",
                              "inspect absent", "completion bash"}) {
    expect_error(with("MANTISSA_MAX_ISA=avx3", command), 2,
                 {"MANTISSA_MAX_ISA=avx3: no such tier", "'avx2'"});
    expect_error(with("MANTISSA_CPU_KERNELS=off", command), 2, {"MANTISSA_CPU_KERNELS=off: choose 0"});
    expect_error(with("MANTISSA_KERNELS=fast", command), 2, {"MANTISSA_KERNELS=fast"});
    expect_error(with("MANTISSA_KEEP_THREADS_APART=no", command), 2,
                 {"MANTISSA_KEEP_THREADS_APART=no: choose 0"});
  }
  EXPECT_EQ(with("MANTISSA_MAX_ISA=avx3", "--help").status, 0);
  EXPECT_EQ(with("MANTISSA_MAX_ISA=avx3", "fit --help").status, 0);
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
      fit(saving + stopping + "--no-enable-checkpointing --max-steps 0 --print-config").err;
  for (const char* flag : {"--every-n-train-steps", "--save-top-k", "--monitor"})
    EXPECT_THAT(in_vain, HasSubstr(std::string(flag) + " has no effect with --no-enable-checkpointing"));
  for (const char* flag : {"--patience", "--min-delta"})
    EXPECT_THAT(in_vain, HasSubstr(std::string(flag) + " has no effect with no --early-stopping"));
  EXPECT_EQ(fit(saving + stopping + "--early-stopping val_loss --print-config").err, "");
}

TEST_F(Program, MemoryFormatAndBenchmarkWithoutConvolutionsAreWarnedOf) {
  const std::string both = "fit --quiet --print-config --channels-last --benchmark --model ";
  EXPECT_EQ(run(both + "resnet-tiny").err, "");
  EXPECT_EQ(
      run(both + "mlp").err,
      "mantissa: warning: --channels-last has no effect with --model mlp, which has no convolutions; leave "
      "it out\n"
      "mantissa: warning: --benchmark has no effect with --model mlp, which has no convolutions; leave it "
      "out\n");
  EXPECT_EQ(
      run(both + "convnet --device cpu").err,
      "mantissa: warning: --benchmark has no effect with --device cpu, which has no cuDNN; leave it out\n");
  EXPECT_EQ(fit("--print-config --no-channels-last --no-benchmark --model mlp").err, "");
}

TEST_F(Program, AWarmUpThatTheRunCutsShortIsWarnedOf) {
  const std::string warning =
      "mantissa: warning: --warmup-steps 3 is more than half of the run's 4 steps, so the learning rate "
      "rises over only 2 steps; choose fewer, or train longer\n";
  EXPECT_EQ(fit("--model mlp --max-steps 4 --warmup-steps 3").err, warning);
  EXPECT_EQ(fit("--model mlp --max-steps 4 --warmup-steps 2").err, "");
  EXPECT_EQ(fit("--model mlp --max-steps 4").err, "") << "the recipe's own is for runs of any length";
}

TEST_F(Program, OneModeIsOfferedWhereARunContinues) {
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
    EXPECT_THAT(warning(std::string("--model resnet-tiny --transactional --precision ") + mode),
                in_vain("--transactional", "--precision [^ ]*, which never skips a step"));
  EXPECT_THAT(warning("--model mlp --transactional --precision O2"),
              in_vain("--transactional", "--model mlp, which has no batch norm"));
  EXPECT_EQ(warning("--model resnet-tiny --transactional --precision 16-true --loss-scale 128"), "");
  EXPECT_EQ(warning("--model mlp --no-transactional"), "");
  const std::string rounding = "--optimizer fused-adamw --stochastic-rounding --precision ";
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
      "--trace-nonfinite --model resnet-tiny --print-config");
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
  EXPECT_THAT(fit("--config twice.yaml").err, HasSubstr("twice.yaml:3: key 'max_scale' is listed twice"));
  write("told.yaml", told.out);
  EXPECT_EQ(fit("--config told.yaml --print-config").out, told.out);
  EXPECT_EQ(fit("--config told.yaml --max-steps 1").status, 0);
}

}  // namespace
}  // namespace mantissa::cli::fit_options_test
