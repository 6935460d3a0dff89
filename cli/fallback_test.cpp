// Tests of trainings that diverge and continue in another mode, and of steps that are retried.
#include <csignal>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::fallback_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

/// The scale becomes a thousand times too high after each step, so that an fp16 run skips one step after another.
const std::string kDiverges =
    "--model mlp --max-steps 40 --every-n-train-steps 1 --log-every-n-steps 1 --seed 3 --init-scale 1024 "
    "--growth-interval 1 --growth-factor 1e15 --divergence-patience 5 ";

class FallbackRuns : public Program {
 protected:
  Json result(const std::string& run) const { return Json::parse(read(folder_ / run / "result.json")); }
  std::string traces(const std::string& run) const {
    return read(folder_ / run / "metrics.csv") + read(folder_ / run / "weights.safetensors");
  }
};

TEST_F(FallbackRuns, ADivergedTrainingContinuesInTheNextMode) {
  const Outcome run = fit(kDiverges + "--precision 16-mixed,bf16-mixed,32-true --output run");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err,
              HasSubstr("the training in 16-mixed has diverged at step 6: the loss or the gradients have not "
                        "been finite for 5 steps. It continues in bf16-mixed from step 1"));
  const Json json = result("run");
  EXPECT_EQ(json["precision"], "bf16-mixed");
  EXPECT_EQ(json["steps"], 40);
  EXPECT_EQ(json["fallbacks"].size(), 1);
  EXPECT_EQ(json["fallbacks"][0]["from"], "16-mixed");
  EXPECT_EQ(json["fallbacks"][0]["continues"], 1);
  EXPECT_THAT(read(folder_ / "run/config.yaml"),
              AllOf(HasSubstr("\nprecision: bf16-mixed "), HasSubstr("\nfallback: 32-true ")));
  // Without the list, the run ends with what it has.
  ASSERT_EQ(fit(kDiverges + "--precision 16-mixed --callbacks DivergenceMonitor --output alone").status, 0);
  EXPECT_EQ(result("alone")["steps"], 6);
  EXPECT_FALSE(result("alone").contains("fallbacks"));
  EXPECT_THAT(result("alone")["stopped_by"].get<std::string>(), HasSubstr("DivergenceMonitor"));
}

TEST_F(FallbackRuns, AKilledTrainingContinuesBitForBit) {
  const std::string words = kDiverges + "--precision 16-mixed --fallback 32-true ";
  ASSERT_EQ(fit(words + "--output whole").status, 0);
  for (const std::string moment : {"^0,2,", "^0,15,"}) {  // before and after the change of mode
    std::filesystem::remove_all(folder_ / "run");
    const Outcome killed =
        run("fit --device cpu --quiet " + words + " --output run & pid=$!; until grep -q " + moment +
            " run/metrics.csv 2>/dev/null; do sleep 0.001; done; kill -KILL $pid; wait $pid");
    EXPECT_THAT(killed.status, testing::AnyOf(137, 0));
    if (killed.status == 0) continue;  // the run was faster than the signal
    ASSERT_EQ(run("resume --quiet run").status, 0);
    EXPECT_TRUE(traces("run") == traces("whole")) << moment;
    EXPECT_EQ(result("run")["fallbacks"], result("whole")["fallbacks"]);
  }
}

TEST_F(FallbackRuns, AResumeInTheSameModeKeepsTheModesToFallBackTo) {
  const std::string words = "--model mlp --lr-schedule constant --precision 16-mixed --fallback bf16-mixed ";
  ASSERT_EQ(fit(words + "--max-steps 1 --output run").status, 0);
  const Outcome same = run("resume run --quiet --max-steps 2 --precision 16-mixed");
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(same.err, "");
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("\nfallback: bf16-mixed "));
  const Outcome other = run("resume run --quiet --max-steps 3 --precision 32-true");
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("--precision 32-true replaces the run's 16-mixed, and drops its "
                                   "--fallback bf16-mixed; give --fallback to have other modes"));
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("\nfallback: none "));
}

TEST_F(FallbackRuns, AYamlListNamesTheModes) {
  write("list.yaml", "precision: [16-mixed, bf16-mixed, 32-true]\n");
  const Outcome list = fit("--config list.yaml --print-config");
  EXPECT_THAT(list.out,
              AllOf(HasSubstr("\nprecision: 16-mixed "), HasSubstr("\nfallback: bf16-mixed,32-true ")));
  EXPECT_THAT(fit("--precision '16-mixed, bf16' --print-config").out, HasSubstr("\nfallback: bf16-mixed "))
      << "an alias, as it is alone";
  write("again.yaml", list.out);
  EXPECT_EQ(fit("--config again.yaml --print-config").out, list.out);
}

TEST_F(FallbackRuns, OtherListsOfYamlAreTakenAsWell) {
  write("lists.yaml",
        "logger: [csv, jsonl]\ncallbacks: [PrecisionMonitor]\ncpu_kernels: [avx2, product=libtorch]\n"
        "precision: nf4\nignore_modules: [head, blocks.0]\n");
  EXPECT_THAT(fit("--config lists.yaml --print-config").out,
              AllOf(HasSubstr("\nlogger: csv,jsonl "), HasSubstr("\ncallbacks: PrecisionMonitor "),
                    HasSubstr("\ncpu_kernels: avx2,product=libtorch "),
                    HasSubstr("\nignore_modules: head,blocks.0 ")));
}

TEST_F(FallbackRuns, WrongListsAreRefused) {
  const auto refuses = [&](const std::string& arguments, const std::vector<std::string>& parts) {
    expect_error(fit(arguments), 2, parts);
  };
  refuses("--precision 16-mixed,bf17-mixed", {"--precision", "'bf17-mixed'", "did you mean 'bf16-mixed'?"});
  refuses("--precision 16-mixed,fp16",
          {"--precision: precision 'fp16' is not a mode", "did you mean '16-mixed'"});
  refuses("--fallback fp16", {"--fallback: precision 'fp16' is not a mode", "did you mean '16-mixed'"});
  refuses("--precision 16-mixed --fallback 16-mixed", {"--fallback: 16-mixed is named twice"});
  refuses("--precision all --fallback 16-mixed", {"--precision all trains in every mode"});
  refuses("--precision 16-mixed,", {"--precision '16-mixed,' has an empty name"});
  refuses("--precision 16-mixed,none",
          {"--precision: none is no mode, and cannot be combined with one; leave it out"});
  refuses("--fallback 32-true,none", {"--fallback: none is no mode"});
  refuses("--precision 16-mixed,all", {"--precision all trains in every mode"});
  refuses("--precision 16-mixed,32-true --fallback bf16-mixed", {"--fallback bf16-mixed does, too"});
  refuses("--fallback 32-true --no-enable-checkpointing", {"--fallback 32-true continues from a checkpoint"});
  refuses("--fallback 32-true --divergence-factor 0.5", {"factor=0.5; give a number above 1"});
  EXPECT_THAT(fit("--divergence-patience 3 --print-config").err,
              HasSubstr("--divergence-patience has no effect with neither --fallback nor --callbacks"));
}

TEST_F(FallbackRuns, RetriedStepsAreCountedInTheResult) {
  const std::string words = "--model mlp --max-steps 5 --precision 16-mixed --init-scale 1e20 ";
  const Outcome retried = fit(words + "--on-overflow retry --output retried");
  ASSERT_EQ(retried.status, 0) << retried.err;
  EXPECT_THAT(retried.err, HasSubstr("10 overflows in a row, whose steps were skipped or retried"));
  EXPECT_THAT(retried.out, HasSubstr(" skipped retries  val loss "));
  EXPECT_EQ(result("retried")["skipped_steps"], 0);
  EXPECT_GT(result("retried")["retries"], 20);
  const Outcome skipped = fit(words + "--output skipped");
  ASSERT_EQ(skipped.status, 0) << skipped.err;
  EXPECT_THAT(skipped.out, HasSubstr(" skipped  val loss "));
  EXPECT_EQ(result("skipped")["skipped_steps"], 5);
  EXPECT_EQ(result("skipped")["retries"], 0);
}

}  // namespace
}  // namespace mantissa::cli::fallback_test
