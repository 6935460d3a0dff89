#include "mantissa/trainer/loggers/json_lines_logger.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <limits>
#include <regex>

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::json_lines_logger_test {
namespace {

class JSONLinesLoggerTest : public InFolder {
 protected:
  /// The file's lines, with times replaced by T.
  std::string lines() const {
    return std::regex_replace(content_of(folder_ / "metrics.jsonl"), std::regex(R"("wall_time":\d+\.\d{6})"),
                              "\"wall_time\":T");
  }
};

TEST_F(JSONLinesLoggerTest, WritesALineForEachCall) {
  JSONLinesLogger logger(folder_);
  logger.log_hyperparams(
      {{"lr", 0.1}, {"epochs", 3}, {"model", "a \"b\"\n"}, {"ema", false}, {"clip", INFINITY}});
  logger.log_metrics({{"loss", 0.5}, {"a \"b\"", 1e20}}, 10);
  logger.log_metrics({}, 11);
  logger.finalize("success");
  EXPECT_EQ(lines(), R"({"hyperparams":{"clip":"Infinity","ema":false,"epochs":3,"lr":0.1,)"
                     R"("model":"a \"b\"\n"},"wall_time":T})"
                     "\n"
                     R"({"step":10,"wall_time":T,"a \"b\"":1e+20,"loss":0.5})"
                     "\n"
                     R"({"step":11,"wall_time":T})"
                     "\n"
                     R"({"status":"success","wall_time":T})"
                     "\n");
}

TEST_F(JSONLinesLoggerTest, IsStrictJsonWhateverTheNumbers) {
  JSONLinesLogger logger(folder_);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  logger.log_metrics(
      {{"a", -std::nan("")}, {"b", kInf}, {"c", -kInf}, {"d", 0.1}, {"e", 5e-324}, {"f", -0.0}}, 1);
  logger.save();
  const auto row = nlohmann::json::parse(content_of(folder_ / "metrics.jsonl"));
  EXPECT_EQ(row["a"], "NaN");
  EXPECT_EQ(row["b"], "Infinity");
  EXPECT_EQ(row["c"], "-Infinity");
  EXPECT_EQ(row["d"].get<double>(), 0.1);
  EXPECT_EQ(row["e"].get<double>(), 5e-324);
}

TEST_F(JSONLinesLoggerTest, ContinuesAFileAndDropsTheRowsAfterTheCheckpoint) {
  std::ofstream(folder_ / "metrics.jsonl") << R"({"hyperparams":{}})"
                                              "\n"
                                              R"({"step":10,"a":1})"
                                              "\n"
                                              R"({"step":30,"a":2})"
                                              "\n"
                                              R"({"status":"failed"})"
                                              "\n"
                                              R"({"step":20,"a")";
  JSONLinesLogger logger(folder_);
  logger.resume_from(20);
  logger.log_metrics({{"a", 3}}, 30);
  logger.save();
  EXPECT_EQ(lines(),
            "{\"hyperparams\":{}}\n{\"step\":10,\"a\":1}\n{\"status\":\"failed\"}\n"
            "{\"step\":30,\"wall_time\":T,\"a\":3}\n");
}

// Only rows are counted: hyperparameters and the final status stay.
TEST_F(JSONLinesLoggerTest, TheCountTellsRowsOfOneStepApart) {
  {
    JSONLinesLogger logger(folder_);
    logger.log_hyperparams({{"lr", 0.5}});
    logger.log_metrics({{"a", 1}}, 4);
    EXPECT_EQ(logger.rows(), 1);
    logger.log_metrics({{"a", 2}}, 4);
    logger.finalize("failed");
  }
  JSONLinesLogger logger(folder_);
  EXPECT_EQ(logger.rows(), 2);
  logger.resume_from(4, 1);
  EXPECT_EQ(lines(),
            "{\"hyperparams\":{\"lr\":0.5},\"wall_time\":T}\n{\"step\":4,\"wall_time\":T,\"a\":1}\n"
            "{\"status\":\"failed\",\"wall_time\":T}\n");
  EXPECT_EQ(logger.rows(), 1);
  logger.resume_from(3);
  EXPECT_EQ(logger.rows(), 0);
}

TEST_F(JSONLinesLoggerTest, CountsTheRowsThatItFindsAndKeepsThoseOfTheStep) {
  {
    JSONLinesLogger logger(folder_);
    logger.log_hyperparams({{"lr", 0.5}});
    logger.log_metrics({{"x", 1}}, 1);
    logger.log_metrics({{"x", 2}}, 2);
    logger.log_metrics({{"x", 3}}, 3);
  }
  JSONLinesLogger logger(folder_);
  EXPECT_EQ(logger.rows(), 3);
  logger.resume_from(2);
  EXPECT_EQ(logger.rows(), 2);
  logger.resume_from(2, 0);
  EXPECT_EQ(logger.rows(), 0);
  EXPECT_THAT(error_of([&] { logger.resume_from(2, -1); }), testing::HasSubstr("rows=-1; give a value from"));
}

}  // namespace
}  // namespace mantissa::json_lines_logger_test
