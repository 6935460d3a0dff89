#include "mantissa/trainer/loggers/tensorboard_logger.h"

#include <chrono>
#include <cmath>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/event_file.h"

namespace mantissa::tensorboard_logger_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::Pair;

class TensorBoardLoggerTest : public InFolder {
 protected:
  std::vector<Event> events() const {
    return parse_events(content_of(fs::directory_iterator(folder_)->path())).events;
  }
};

TEST_F(TensorBoardLoggerTest, WritesScalarsHyperparametersAndTheEnd) {
  const auto before = std::chrono::system_clock::now();
  {
    TensorBoardLogger logger(folder_);
    logger.log_hyperparams({{"lr", 0.1}, {"epochs", 3}, {"model", "a|b\nc"}, {"ema", true}});
    logger.log_metrics({{"loss", 0.1}, {"big", 1e300}}, 10);
    logger.resume_from(10);
    logger.log_metrics({{"loss", torch::tensor(NAN)}}, 11);
    logger.finalize("interrupted");
    logger.finalize("success");
  }
  const std::vector<Event> all = events();
  ASSERT_EQ(all.size(), 8U);
  EXPECT_EQ(all[0].file_version, "brain.Event:2");
  EXPECT_EQ(all[1].hparams,
            (std::map<std::string, Event::HParam>{
                {"ema", true}, {"epochs", 3.0}, {"lr", 0.1}, {"model", std::string("a|b\nc")}}));
  EXPECT_THAT(all[1].texts, ElementsAre(Pair("hyperparameters",
                                             "| hyperparameter | value |\n|---|---|\n| ema | true |\n"
                                             "| epochs | 3 |\n| lr | 0.1 |\n| model | a\\|b c |\n")));
  EXPECT_EQ(all[2].step, 10);
  EXPECT_THAT(all[2].scalars, ElementsAre(Pair("big", INFINITY), Pair("loss", 0.1F)));
  EXPECT_TRUE(all[3].restarts);
  EXPECT_EQ(all[3].step, 11);
  EXPECT_EQ(all[4], all[3]);
  EXPECT_TRUE(std::isnan(all[5].scalars.at(0).second));
  EXPECT_EQ(all[6].succeeded, false);
  EXPECT_EQ(all[7].succeeded, true);
  for (const Event& event : all) {
    EXPECT_GE(event.wall_time, std::chrono::duration<double>(before.time_since_epoch()).count());
    EXPECT_LE(event.wall_time - all[0].wall_time, 60);
  }
}

}  // namespace
}  // namespace mantissa::tensorboard_logger_test
