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

TEST_F(Program, IntervalsOfAMissingMonitorAreWarnedOf) {
  const std::string intervals = "--precision-every-n-steps 5 --error-every-n-steps 10 --print-config ";
  const std::string without = fit(intervals).err;
  for (const char* flag : {"--precision-every-n-steps", "--error-every-n-steps"})
    EXPECT_THAT(without,
                HasSubstr(std::string(flag) + " has no effect with no --callbacks PrecisionMonitor"));
  EXPECT_THAT(
      fit(intervals + "--callbacks PrecisionMonitor --precision bf16-mixed").err,
      HasSubstr(
          "--error-every-n-steps has no effect with --precision bf16-mixed, which has no FP8 products"));
  EXPECT_EQ(fit(intervals + "--callbacks PrecisionMonitor --precision fp8-mixed").err, "");
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
    return "mantissa: warning: " + flag + " has no effect with " + because + "[^\n]*\n";
  };
  const std::string transactional = in_vain("--transactional", "--precision [^ ]*, which never skips a step"),
                    rounding = in_vain("--stochastic-rounding", "--precision [^ ]*, whose optimizer"),
                    products = in_vain("--float32-matmul-precision", "--precision [^ ]*, whose products");
  struct Case {
    std::string mode;
    bool skips, rounds, multiplies;  ///< whether the three options have an effect
  };
  // The program takes a third of a second to start, so each run gives all three options.
  for (const auto& [mode, skips, rounds, multiplies] : std::initializer_list<Case>{
           {"32-true", false, false, true},
           {"64-true", false, false, false},
           {"16-mixed", true, false, false},
           {"16-mixed --loss-scale none", false, false, false},
           {"bf16-mixed", false, false, false},
           {"16-true", false, true, false},
           {"16-true --loss-scale 128", true, true, false},
           {"bf16-true", false, true, false},
           {"bf16-true --master-weights true", false, false, false},
           {"O0", false, false, true},
           {"O1", true, false, false},
           {"O2", true, false, false},
           {"O2 --master-weights false", true, true, false},
           {"O3", false, true, false},
       })
    EXPECT_THAT(
        warning("--model resnet-tiny --transactional --optimizer fused-adamw --stochastic-rounding "
                "--float32-matmul-precision high --precision " +
                mode),
        MatchesRegex((skips ? "" : transactional) + (rounds ? "" : rounding) + (multiplies ? "" : products)))
        << mode;
  EXPECT_EQ(warning("--optimizer fused-adamw --stochastic-rounding --float32-matmul-precision high "
                    "--precision all"),
            "");
  EXPECT_THAT(warning("--model mlp --transactional --precision O2"),
              MatchesRegex(in_vain("--transactional", "--model mlp, which has no batch norm")));
  EXPECT_EQ(warning("--model mlp --no-transactional"), "");
  EXPECT_THAT(warning("--model mlp --on-overflow retry --precision bf16-mixed"),
              MatchesRegex(in_vain("--on-overflow", "--precision bf16-mixed, which never skips a step")));
  EXPECT_EQ(warning("--model mlp --on-overflow retry --precision 16-mixed"), "");
}

}  // namespace
}  // namespace mantissa::cli::without_effect_test
