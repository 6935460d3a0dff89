// Tests of the warnings about options that have no effect together with the others.
#include "cli/test_support_internal.h"

namespace mantissa::cli::without_effect_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

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

TEST_F(Program, QuantizedWeightsThatAreRandomAreWarnedOf) {
  for (const std::string mode : {"nf4", "nf4-dq", "fp4", "int8"})
    EXPECT_THAT(fit("--model mlp --print-config --precision " + mode).err,
                AllOf(HasSubstr("--precision " + mode + " freezes"), HasSubstr("random without --weights")));
  EXPECT_EQ(fit("--model mlp --print-config --precision int8-training").err, "");
  EXPECT_EQ(fit("--model mlp --print-config --precision nf4 --weights w.safetensors").err, "");
}

TEST_F(Program, AWarmUpThatTheRunCutsShortIsWarnedOf) {
  const std::string warning =
      "mantissa: warning: --warmup-steps 3 is more than half of the run's 4 steps, so the learning rate "
      "rises over only 2 steps; choose fewer, or train longer\n";
  EXPECT_EQ(fit("--model mlp --max-steps 4 --warmup-steps 3").err, warning);
  EXPECT_EQ(fit("--model mlp --max-steps 4 --warmup-steps 2").err, "");
  EXPECT_EQ(fit("--model mlp --max-steps 4").err, "") << "the recipe's own is for runs of any length";
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

}  // namespace
}  // namespace mantissa::cli::without_effect_test
