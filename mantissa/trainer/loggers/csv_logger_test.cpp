#include "mantissa/trainer/loggers/csv_logger.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <limits>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::csv_logger_test {
namespace {

using testing::HasSubstr;

class CSVLoggerTest : public InFolder {
 protected:
  std::string rows() const { return content_of(folder_ / "metrics.csv"); }
  void write(const std::string& content) const { std::ofstream(folder_ / "metrics.csv") << content; }
};

TEST_F(CSVLoggerTest, GivesALateMetricItsColumnAndLeavesItEmptyBefore) {
  CSVLogger logger(folder_);
  EXPECT_EQ(rows(), "step\n");
  logger.log_metrics({{"epoch", 0}, {"train_loss", 1.5}, {"skipped_steps", 1}}, 10);
  logger.save();
  EXPECT_EQ(rows(), "epoch,step,skipped_steps,train_loss\n0,10,1,1.5\n");
  logger.log_metrics({{"epoch", 1}, {"train_loss", 0.1}, {"a", 2}}, 20);
  logger.log_metrics({{"lr", 1e-3}}, 21);
  logger.save();
  EXPECT_EQ(rows(), "epoch,step,skipped_steps,a,lr,train_loss\n0,10,1,,,1.5\n1,20,,2,,0.1\n,21,,,0.001,\n");
}

TEST_F(CSVLoggerTest, KeepsDoublesAndWhatIsNoNumber) {
  CSVLogger logger(folder_);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  logger.log_metrics(
      {{"a", 0.1}, {"b", 1e300}, {"c", 5e-324}, {"d", -std::nan("")}, {"e", kInf}, {"f", -kInf}}, 1);
  logger.save();
  EXPECT_EQ(rows(), "step,a,b,c,d,e,f\n1,0.1,1e+300,5e-324,nan,inf,-inf\n");
}

TEST_F(CSVLoggerTest, QuotesNames) {
  {
    CSVLogger logger(folder_);
    logger.log_metrics({{"a,\"b\"", 1}}, 1);
  }
  CSVLogger logger(folder_);  // reads them back
  logger.log_metrics({{"z", 2}, {"a,\"b\"", 3}}, 2);
  logger.save();
  EXPECT_EQ(rows(), "step,\"a,\"\"b\"\"\",z\n1,1,\n2,3,2\n");
}

TEST_F(CSVLoggerTest, ContinuesAFileAndDropsTheRowsAfterTheCheckpoint) {
  write("epoch,step,loss\n0,10,1\n0,20,2\n1,30,3\n,20,4\n0,3");  // cut by a kill
  {
    CSVLogger logger(folder_);
    logger.resume_from(20);
    EXPECT_EQ(rows(), "epoch,step,loss\n0,10,1\n0,20,2\n,20,4\n");
    logger.log_metrics({{"loss", 5}, {"epoch", 1}}, 30);
  }
  CSVLogger logger(folder_);
  logger.log_metrics({{"acc", 1}}, 40);
  logger.save();
  EXPECT_EQ(rows(), "epoch,step,acc,loss\n0,10,,1\n0,20,,2\n,20,,4\n1,30,,5\n,40,1,\n");
}

// A row before a checkpoint and the epoch's row after it have the same step: only the count tells them apart.
TEST_F(CSVLoggerTest, TheCountTellsRowsOfOneStepApart) {
  int64_t at_the_checkpoint = 0;
  {
    CSVLogger logger(folder_);
    EXPECT_EQ(logger.rows(), 0);
    logger.log_metrics({{"loss", 1}}, 2);
    logger.log_metrics({{"loss", 2}}, 4);
    at_the_checkpoint = logger.rows().value();
    logger.log_metrics({{"acc", 3}}, 4);
  }
  EXPECT_EQ(at_the_checkpoint, 2);
  CSVLogger logger(folder_);
  EXPECT_EQ(logger.rows(), 3);
  logger.resume_from(4, at_the_checkpoint);
  EXPECT_EQ(rows(), "step,acc,loss\n2,,1\n4,,2\n");
  EXPECT_EQ(logger.rows(), 2);
  logger.log_metrics({{"acc", 3}}, 4);
  logger.save();
  EXPECT_EQ(rows(), "step,acc,loss\n2,,1\n4,,2\n4,3,\n");
  EXPECT_EQ(logger.rows(), 3);
  logger.resume_from(4, 100);  // the file has lost some rows
  EXPECT_EQ(logger.rows(), 3);
  logger.resume_from(3);
  EXPECT_EQ(logger.rows(), 1);
  logger.resume_from(-1);
  EXPECT_EQ(rows(), "step,acc,loss\n");
  EXPECT_EQ(logger.rows(), 0);
}

// One program makes two runs: steps begin anew, and the first run's rows do not count as later ones.
TEST_F(CSVLoggerTest, TheCountKeepsAnEarlierRun) {
  write("step,loss\n10,1\n20,2\n");
  CSVLogger logger(folder_);
  logger.log_metrics({{"loss", 3}}, 5);
  const int64_t at_the_checkpoint = logger.rows().value();
  logger.log_metrics({{"loss", 4}}, 6);
  logger.resume_from(5, at_the_checkpoint);
  EXPECT_EQ(rows(), "step,loss\n10,1\n20,2\n5,3\n");
}

TEST_F(CSVLoggerTest, RefusesATableThatIsNotItsOwn) {
  for (const char* line : {"loss,epoch,step", "a,b", "epoch;step", "step,\"a", "step,step", ""}) {
    write(std::string(line) + "\n1,2,3\n");
    EXPECT_THAT(error_of([&] { CSVLogger logger(folder_); }),
                HasSubstr("its first line is not a CSVLogger's"))
        << line;
  }
  const std::string wrong_row = "step,loss\n1,2\n1,2,3\n";
  write(wrong_row);
  CSVLogger logger(folder_);
  logger.log_metrics({{"new", 1}}, 1);
  EXPECT_THAT(error_of([&] { logger.save(); }),
              HasSubstr("the row '1,2,3' does not have the header's 2 cells"));
  EXPECT_EQ(rows(), wrong_row);
}

TEST_F(CSVLoggerTest, RefusesToResumeWhereAStepIsNone) {
  for (const char* step : {"", "x", "1.5", "99999999999999999999"}) {
    write(std::string("step,loss\n") + step + ",2\n");
    CSVLogger logger(folder_);
    EXPECT_THAT(error_of([&] { logger.resume_from(1); }), HasSubstr("is not a step")) << step;
  }
}

TEST_F(CSVLoggerTest, KeepsHyperparameters) {
  CSVLogger logger(folder_);
  logger.log_hyperparams({{"lr", 1e-5}, {"epochs", 3}, {"model", "a: \"b\""}, {"ema", true}});
  logger.log_hyperparams({{"epochs", 4}, {"lr2", 1.0}, {"inf", INFINITY}, {"nan", NAN}, {"big", 1.5e300}});
  EXPECT_EQ(content_of(folder_ / "hparams.yaml"),
            "\"big\": 1.5e+300\n\"ema\": true\n\"epochs\": 4\n\"inf\": .inf\n\"lr\": 1.0e-05\n\"lr2\": 1.0\n"
            "\"model\": \"a: \\\"b\\\"\"\n\"nan\": .nan\n");
}

TEST_F(CSVLoggerTest, IsOnlyAppendedToWhileNoColumnComes) {
  CSVLogger logger(folder_);
  logger.log_metrics({{"loss", 1}}, 1);
  logger.save();
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_hard_link(folder_ / "metrics.csv", link);
  logger.log_metrics({{"loss", 2}}, 2);
  logger.save();
  EXPECT_EQ(content_of(link), "step,loss\n1,1\n2,2\n");  // the same file
  logger.log_metrics({{"acc", 2}}, 3);
  logger.save();
  EXPECT_EQ(content_of(link), "step,loss\n1,1\n2,2\n");  // another file has the name now
}

TEST_F(CSVLoggerTest, ContinuesUnderNamesThatEndInQuotes) {
  for (int64_t step = 1; step <= 2; ++step) {
    CSVLogger logger(folder_);
    logger.log_metrics({{"\"", 1}, {"a,\"", 2}, {"\"\"b", 3}, {"c\"\"", 4}}, step);
  }
  EXPECT_EQ(rows(), "step,\"\"\"\",\"\"\"\"\"b\",\"a,\"\"\",\"c\"\"\"\"\"\n1,1,3,2,4\n2,1,3,2,4\n");
}

}  // namespace
}  // namespace mantissa::csv_logger_test
