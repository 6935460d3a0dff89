// Tests of the errors for wrong options: words, numbers, keys and variables of the environment.
#include <algorithm>

#include <c10/util/StringUtil.h>

#include "cli/test_support_internal.h"

namespace mantissa::cli::option_errors_test {
namespace {

TEST_F(Program, WrongWordsExitWithTwo) {
  expect_error(run(""), 2, {"subcommand"});
  expect_error(run("fitt"), 2, {"'fitt' is not a command; did you mean 'fit'?"});
  expect_error(fit("--precision bf17-mixed"), 2,
               {"'bf17-mixed'", "did you mean 'bf16-mixed'?", "allowed: 32-true"});
  expect_error(fit("--model convnett"), 2, {"'convnett'", "did you mean 'convnet'?"});
  expect_error(fit("--model gpt-tiny"), 2, {"gpt-tiny", "--data text:FILE"});
  expect_error(fit("--model gpt-tiny --data digits"), 2, {"cannot read", "mlp, convnet, resnet-tiny"});
  expect_error(fit("--data numbers"), 2,
               {"'numbers'",
                "digits, idx:DIR, cifar10:DIR, cifar100:DIR, images:DIR, npy:DIR, csv:FILE, text:FILE, "
                "tokens:FILE or chat:FILE"});
  expect_error(fit("--data idx:"), 2, {"'idx:'"});
  expect_error(fit("--optimizer adamx"), 2, {"'adamx'", "sgd, adamw"});
  expect_error(fit("--batch-size 0"), 2, {"--batch-size 0 is out of range; choose 1 to 1e9\n"});
  expect_error(fit("--batch-size many"), 2, {"--batch-size", "many"});
  expect_error(fit("--num-workers -1"), 2, {"--num-workers -1", "choose 0 (none) to 1024"});
  expect_error(fit("--data images:photos --crop-scale 1e-9"), 2,
               {"--crop-scale 1e-09 is out of range; choose 0.0001 to 1\n"});
  expect_error(fit("--mixup 1e+300"), 2, {"--mixup 1e+300 is out of range; choose 0 (none) to 1e6\n"});
  expect_error(fit("--alpha 1e-9"), 2, {"choose 1e-6 or more, below 1\n"});
  expect_error(fit("--min-8bit-size 2000000000000000"), 2, {"choose 0 to 1e15\n"});
  expect_error(fit("--context 1048577"), 2, {"choose 1 to 1048576\n"});
  expect_error(fit("--max-epochs -2"), 2, {"choose -1 (no limit) or more\n"});
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
  for (const char* flag : {"--features", "--train-only", "--optim-32bit-modules", "--ignore-modules"})
    for (const char* list : {"", ",", "a,"})
      expect_error(fit(c10::str(flag, " '", list, "' --model mlp")), 2,
                   {flag, c10::str("'", list, "' has"), " name"});
  expect_error(fit("--logger csv,"), 2, {"--logger 'csv,' has an empty name"});
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
  expect_error(fit("--precision bf16-mixed --loss-scale 128"), 2, {"--loss-scale '128'", "only fp16"});
  expect_error(fit("--precision 16-true --loss-scale much"), 2, {"'much' is not a scale", "dynamic, none"});
  expect_error(fit("--amp-level O2"), 2, {"--amp-backend 'apex'"});
  expect_error(fit("--precision bf16-mixed --amp-backend apex"), 2, {"choose by --amp-level"});
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
  // YAML::LoadAll() would never end with this text: it finds one document after another.
  write("endless.yaml", "---\n&a b\n? data\n: x\n");
  expect_error(fit("--config endless.yaml"), 2, {"endless.yaml", "must be a map"});
  write("empty_first.yaml", "---\n---\nlr: 1\n");
  expect_error(fit("--config empty_first.yaml"), 2, {"several YAML documents"});
  // The run's own config.yaml could not contain these bytes.
  write("latin1.yaml", "lr: 1\ndata: \"idx:\xff\\n\"\n");
  write("zero.yaml", "model: mlp\noutput: \"run\\0elsewhere\"\n");
  expect_error(fit("--config zero.yaml"), 2, {"zero.yaml:2:", "'output'", "without zero bytes"});
  write("deep.yaml", "model: " + std::string(100'000, '[') + "\n");
  expect_error(fit("--config deep.yaml"), 2, {"deep.yaml"});
  expect_error(fit("--config latin1.yaml"), 2, {"latin1.yaml:2:", "'data'", "write it in UTF-8"});
  // Control characters of a file do not reach the terminal, where they could move the cursor.
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
                 {flag_of(name), value, because});
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
               {"--min-scale 8 is above --max-scale 4"});
  expect_error(fit("--growth-factor 4 --print-config"), 2,
               {"'bf16-mixed' with --growth-factor 4", "leave it out, or choose 16-mixed"});
  expect_error(fit("--precision 16-true --hysteresis-steps 4"), 2,
               {"--hysteresis-steps 4", "--loss-scale dynamic"});
  expect_error(fit("--precision O2 --loss-scale 128 --max-scale 1024"), 2,
               {"--max-scale 1024", "128 is fixed"});
  expect_error(fit("--precision 16-mixed --loss-scale none --warn-after-skips 4"), 2,
               {"--warn-after-skips 4"});
  expect_error(fit("--precision all --growth-factor 1"), 2, {"--growth-factor 1 is out of range"});
  expect_error(fit("--precision all --growth-factor abc"), 2, {"--growth-factor 'abc' is not a number"});
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
  refuses("growth_factor: .nan", {"--growth-factor '.nan'", "give one, or auto"});
  refuses("growth_factor: true", {"--growth-factor 'true'", "give one, or auto"});
  refuses("growth_interval: 1e3", {"--growth-interval '1e3'", "is not a whole number"});
  refuses("grwoth_interval: 5", {"'grwoth_interval'", "did you mean 'growth_interval'?"});
  refuses("float32_matmul_precision: [high]", {"'float32_matmul_precision' must be one value"});
  refuses("lora: {r: 4, alpha: 8, dora: true}",
          {"'lora' must be one value", "; write `lora: r=4,alpha=8,dora`"});
  refuses("lora: {r: 4, targets: [a, b], dora: false}", {"; write `lora: r=4,targets=a+b`"});
  refuses("lora: {r: {a: 4}}", {"'lora' must be one value", "as on the command line"});
  refuses("ignore_modules: []", {"'ignore_modules' must be one value", "; leave it out"});
  refuses("logger: [csv, [jsonl]]", {"'logger' must be one value", "; write one text"});
  refuses("float32_matmul_precision: hgih", {"'hgih'", "did you mean 'high'?"});
  refuses("transactional: sometimes", {"'transactional' must be true or false, got 'sometimes'"});
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
    for (const auto& [key, flag] : {std::pair("growth_factor", "--growth-factor"),
                                    {"init_scale", "--init-scale"},
                                    {"loss_scale", "--loss-scale"}}) {
      write("scale.yaml", std::string("precision: 16-mixed\n") + key + ": " + number + "\n");
      expect_error(fit("--config scale.yaml"), 2, {flag, quoted});
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

TEST_F(Program, SGDIn8BitsNeedsAMomentum) {
  expect_error(fit("--optimizer sgd --optim-32bit-modules head"), 2,
               {"--optim-32bit-modules", "--optimizer sgd have more bits", "such as adamw8bit"});
  expect_error(fit("--optimizer sgd8bit --momentum 0"), 2,
               {"--momentum 0 with --optimizer sgd8bit", "--optimizer fused-sgd"});
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
  // What looks like a switch, and is none, names its values.
  for (const char* const flag : {"--quantize-convolutions", "--keep-batchnorm-fp32"})
    expect_error(fit(flag), 2, {std::string(flag) + " needs a value; choose from auto, true, false"});
  expect_error(fit("--quantize-convolutions true"), 2,
               {"'bf16-mixed' with --quantize-convolutions true", "leave it out"});
  expect_error(fit("--precision bf16-mixed --ignore-modules dtype"), 2,
               {"'bf16-mixed' with --ignore-modules 'dtype':"});
  expect_error(fit("--precision bf16-mixed --quant-dtype float16"), 2,
               {"'bf16-mixed' with --quant-dtype float16:"});
  expect_error(fit("--lr"), 2, {"--lr"});
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
  expect_error(fit("--model resnet"), 2, {"did you mean 'resnet18'?"});
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

}  // namespace
}  // namespace mantissa::cli::option_errors_test
