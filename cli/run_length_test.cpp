// Tests of a run's length, its share of each epoch, monitored metrics and early stopping.
#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::run_length_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class RunLength : public Program {
 protected:
  /// Runs fit in the folder "run"; returns the content of its result.json.
  json fitted(const std::string& arguments) const {
    const Outcome outcome = fit("--model mlp --precision 32-true --output run " + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(read(folder_ / "run/result.json"));
  }
  std::string header() const {
    const std::string rows = read(folder_ / "run/metrics.csv");
    return rows.substr(0, rows.find('\n'));
  }
};

TEST_F(RunLength, WrongWordsExitWithTwo) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong{
      {"--max-time 90", {"--max-time '90'", "DD:HH:MM:SS"}},
      {"--max-time 00:00:00:00", {"not a time above 0"}},
      {"--weights ''", {"'' is not a file"}},
      {"--output ''", {"'' is not a file"}},
      {"--data idx:", {"--data 'idx:' names no data; write digits"}},
      {"--batch-size 9223372036854775807", {"--batch-size 9223372036854775807 is out of range"}},
      {"--max-time 00:24:00:00", {"DD:HH:MM:SS with at most 23 hours"}},
      {"--limit-train-batches 0.001", {"limit_train_batches=0.001 of 45 batches leaves no batch"}},
      {"--limit-val-batches 0.01", {"limit_val_batches=0.01 of ", "batches leaves no batch"}},
      {"--precision 16-true --optimizer sgd --lr 70000", {"--lr 70000", "65504", "16-mixed"}},
      {"--val-fraction 0.90000001", {"--val-fraction 0.90000001 is out of range"}},
      {"--max-time 00:00:01:00:", {"DD:HH:MM:SS"}},
      {"--max-time -1:00:00:00", {"DD:HH:MM:SS"}},
      {"--limit-train-batches 1.5", {"--limit-train-batches '1.5'", "such as 100, or 0.25"}},
      {"--limit-val-batches all", {"--limit-val-batches 'all'"}},
      {"--val-check-interval 0", {"val_check_interval is 0"}},
      {"--overfit-batches -3", {"overfit_batches=-3 is negative"}},
      {"--check-val-every-n-epoch -1", {"--check-val-every-n-epoch -1"}},
      {"--check-val-every-n-epoch 0", {"val_check_interval counts batches over all epochs"}},
      {"--num-sanity-val-steps -2", {"num_sanity_val_steps"}},
      {"--min-epochs 5 --max-epochs 2", {"min_epochs=5 is above max_epochs=2"}},
      {"--early-stopping loss", {"--early-stopping 'loss'", "val_loss"}},
      {"--patience -1", {"--patience -1"}},
      {"--callbacks PrecisionMonitr", {"did you mean 'PrecisionMonitor'"}},
      {"--callbacks none,PrecisionMonitor", {"none cannot be combined"}},
      {"--callbacks PrecisionMonitor --logger none", {"--logger is none"}},
      {"--logger csv,csv", {"csv is listed twice"}},
      {"--limit-val-batches 0 --monitor val_loss", {"--monitor val_loss", "--limit-val-batches"}},
      {"--limit-val-batches 0 --early-stopping val_loss", {"--early-stopping val_loss"}},
      {"--max-epochs -1 --max-time 00:00:01:00", {"--lr-schedule constant"}},
  };
  for (const auto& [arguments, parts] : wrong) expect_error(fit("--model mlp " + arguments), 2, parts);
}

TEST_F(RunLength, TrainingSeesAShareOfItsBatches) {
  const json result = fitted("--max-epochs 2 --limit-train-batches 3 --limit-val-batches 0.5");
  EXPECT_EQ(result["steps"], 6);
  EXPECT_TRUE(result["val_loss"].is_number());
}

TEST_F(RunLength, WithoutValidationTheTrainingLossChooses) {
  const json result = fitted("--max-epochs 2 --limit-train-batches 3 --limit-val-batches 0");
  EXPECT_TRUE(result["val_loss"].is_null());
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("monitor: train_loss"));
}

TEST_F(RunLength, ValidatesInTheMiddleOfAnEpoch) {
  fitted("--max-epochs 1 --limit-train-batches 4 --val-check-interval 0.5 --log-every-n-steps 1");
  const std::string rows = read(folder_ / "run/metrics.csv");
  EXPECT_THAT(header(), HasSubstr("val_loss"));
  // Steps 1 to 4. Validation runs after step 2 and, with the epoch's row, after step 4.
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 1 + 4 + 2) << rows;
}

TEST_F(RunLength, ModelsOfAShortRunAreValidatedWhole) {
  fitted("--max-epochs 1 --limit-train-batches 3 --limit-val-batches 1");
  EXPECT_EQ(run("validate run --json -").status, 0);
  EXPECT_EQ(json::parse(read(folder_ / "out.txt"))["samples"], 359);
}

TEST_F(RunLength, EarlyStoppingEndsTheRunAndMorePatienceContinuesIt) {
  const std::string words =
      "--limit-train-batches 2 --early-stopping val_accuracy --min-delta 1 --patience 2 --max-epochs 9";
  const json result = fitted(words);
  EXPECT_EQ(result["epochs"], 3);
  EXPECT_THAT(result["stopped_by"].get<std::string>(),
              StartsWith("EarlyStopping: val_accuracy has not improved"));
  const Outcome refused = run("resume run --quiet");
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("--patience"));
  EXPECT_EQ(run("resume run --quiet --patience 4 --json -").status, 0);
  EXPECT_EQ(json::parse(read(folder_ / "out.txt"))["epochs"], 5);
}

TEST_F(RunLength, MinEpochsHoldEarlyStoppingBack) {
  const json result = fitted(
      "--limit-train-batches 2 --early-stopping val_accuracy --min-delta 1 --patience 1 --max-epochs 9 "
      "--min-epochs 4");
  EXPECT_EQ(result["epochs"], 4);
}

TEST_F(RunLength, MaxTimeEndsARunWithoutOtherEnd) {
  const json result = fitted("--max-epochs -1 --lr-schedule constant --max-time 00:00:00:01");
  EXPECT_GT(result["steps"], 0);
  EXPECT_GE(result["seconds"], 1.0);
}

TEST_F(RunLength, MonitorsWriteTheirColumns) {
  fitted(
      "--max-epochs 1 --limit-train-batches 2 --log-every-n-steps 1 --callbacks "
      "LearningRateMonitor,PrecisionMonitor,DeviceStatsMonitor");
  EXPECT_THAT(header(), AllOf(HasSubstr("lr-"), HasSubstr("grad_norm"), HasSubstr("DeviceStatsMonitor")));
}

TEST_F(RunLength, FastDevRunTriesEverythingAndLeavesNoCheckpointAndNoLog) {
  const json result = fitted("--fast-dev-run 1 --callbacks LearningRateMonitor --early-stopping val_loss");
  EXPECT_EQ(result["steps"], 1);
  EXPECT_TRUE(result["val_loss"].is_number());
  const std::set<std::string> left = listing();
  EXPECT_THAT(left, Not(Contains("run/checkpoints")));
  EXPECT_THAT(left, Not(Contains("run/metrics.csv")));
  expect_error(run("resume run"), 1, {"has no checkpoints to resume from", "fit --weights"});
}

TEST_F(RunLength, FastDevRunWithoutAFolderLeavesNothing) {
  const Outcome tried = fit("--model mlp --fast-dev-run 2 --warmup-steps 90 --json result.json");
  ASSERT_EQ(tried.status, 0) << tried.err;
  EXPECT_THAT(tried.left, testing::ElementsAre("result.json"));
  EXPECT_THAT(tried.err, Not(HasSubstr("more than half"))) << "a recipe's warm-up is meant for a whole run";
  EXPECT_EQ(json::parse(read(folder_ / "result.json"))["run_folder"], "");
  EXPECT_THAT(tried.out, HasSubstr(" MiB  -\n"));
}

TEST_F(RunLength, DetectAnomalyEndsOnTheOperation) {
  const Outcome outcome = fit("--model mlp --precision 32-true --lr 1000000 --detect-anomaly");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("returned nan values"));
}

}  // namespace
}  // namespace mantissa::cli::run_length_test
