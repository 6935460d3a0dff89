#include "mantissa/trainer/csv_logger.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include <torch/torch.h>

#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

std::string read(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(CsvLogger, GivesALateMetricItsColumnAndLeavesItEmptyBefore) {
  const std::filesystem::path file = testing::TempDir() + "csv_logger_test.csv";
  CsvLogger logger(file);
  Trainer trainer({.device = "cpu"});
  logger.on_fit_start(trainer, {});
  EXPECT_EQ(read(file), "epoch,step,skipped_steps\n");
  logger.on_train_batch_end(trainer,
                            {.loss = {}, .stepped = true, .step = {true, SkipCause::kNonFiniteGradients}});
  logger.on_epoch_end(trainer, 0, 10, {{"train_loss", 1.5}});
  EXPECT_EQ(read(file), "epoch,step,skipped_steps,train_loss\n0,10,1,1.5\n");
  logger.on_epoch_end(trainer, 1, 20, {{"train_loss", 0.1}, {"a", 2}});
  EXPECT_EQ(read(file), "epoch,step,skipped_steps,a,train_loss\n0,10,1,,1.5\n1,20,1,2,0.1\n");
}

TEST(CsvLogger, NamesTheFileThatCannotBeWritten) {
  CsvLogger logger("/proc/no/such/folder/metrics.csv");
  try {
    Trainer trainer({.device = "cpu"});
    logger.on_fit_start(trainer, {});
    FAIL() << "wrote into /proc";
  } catch (const c10::Error& error) {
    EXPECT_NE(error.what_without_backtrace(), nullptr);
    EXPECT_NE(std::string(error.what()).find("/proc/no/such/folder/metrics.csv"), std::string::npos);
  }
}

}  // namespace
}  // namespace mantissa
