#include "mantissa/trainer/loggers/background_logger.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/core/thread_warnings.h"
#include "mantissa/trainer/metrics.h"

namespace mantissa::background_logger_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Records the calls of a MemoryWriter. It outlives the logger. Tests read it after a call that waits for the
/// writer, or after the logger's end.
struct Log {
  std::vector<std::string> calls;
  std::mutex mutex;  ///< a test that holds it blocks the writer
  std::atomic<int> rows{0};
  std::atomic<bool> fails{false}, throws_a_number{false};
  bool counts = true;  ///< whether the writer counts its rows
  /// Runs once, in the writer's next call.
  std::function<void()> in_call;
};

class MemoryWriter final : public LogWriter {
 public:
  explicit MemoryWriter(Log& log) : log_(log) {}
  void write(std::span<const LogRow> rows) override {
    for (const LogRow& row : rows) {
      std::string text = std::to_string(row.step);
      for (const auto& [name, value] : row.metrics) text += " " + name + "=" + format_metric(value.read());
      add(text);
      ++log_.rows;
    }
  }
  void write_hyperparams(const Hyperparameters& params, double /*wall_time*/) override {
    add("params " + std::to_string(params.size()));
  }
  void resume_from(int64_t step, std::optional<int64_t> rows, double /*wall_time*/) override {
    add("resume " + std::to_string(step) + (rows ? " with " + std::to_string(*rows) : ""));
    if (rows) log_.rows = static_cast<int>(*rows);
  }
  std::optional<int64_t> rows() const override {
    if (!log_.counts) return std::nullopt;
    return log_.rows;
  }
  void finish(const std::string& status, double /*wall_time*/) override { add("finish " + status); }
  void sync() override { add("sync"); }

 private:
  void add(const std::string& call) {
    if (log_.in_call) std::exchange(log_.in_call, nullptr)();
    const std::scoped_lock lock(log_.mutex);
    if (log_.throws_a_number) throw 7;
    if (log_.fails) throw std::runtime_error("the disk is gone");
    log_.calls.push_back(call);
  }
  Log& log_;
};

class MemoryLogger final : public BackgroundLogger {
 public:
  /// Flushes by time only every hour, so that a test observes other causes of a write.
  explicit MemoryLogger(Log& log, const BackgroundOptions& options = {.flush_seconds = 3600})
      : BackgroundLogger("memory", "", std::make_unique<MemoryWriter>(log), options) {}
};

/// Waits for an event in another thread; returns false if it never comes.
bool comes(const std::function<bool()>& happened) {
  for (int i = 0; i < 10'000; ++i) {
    if (happened()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(BackgroundLogger, KeepsTheOrderOfCalls) {
  Log log;
  {
    MemoryLogger logger(log);
    logger.log_hyperparams({{"lr", 0.1}, {"model", "mlp"}});
    logger.resume_from(4);
    logger.log_metrics({{"loss", 0.5}, {"a", 2}}, 5);
    logger.log_metrics({}, 6);
    logger.save();
    EXPECT_THAT(log.calls, ElementsAre("params 2", "resume 4", "5 a=2.0000 loss=0.5000", "6", "sync"));
    log.calls.clear();
    logger.log_metrics({{"loss", 0.25}}, 7);
    logger.finalize("success");
    EXPECT_THAT(log.calls, ElementsAre("7 loss=0.2500", "finish success", "sync"));
    log.calls.clear();
    logger.log_metrics({{"loss", 1}}, 8);
  }
  EXPECT_THAT(log.calls, ElementsAre("8 loss=1.0000", "sync"));
}

TEST(BackgroundLogger, WritesByItselfAfterTheFlushTime) {
  Log log;
  MemoryLogger logger(log, {.flush_seconds = 0.01});
  logger.log_metrics({{"loss", 0.5}}, 1);
  EXPECT_TRUE(comes([&] { return log.rows == 1; }));
}

TEST(BackgroundLogger, WritesByItselfWhenTheQueueIsHalfFull) {
  Log log;
  MemoryLogger logger(log, {.flush_seconds = 3600, .queue_rows = 8});
  for (int step = 0; step < 3; ++step) logger.log_metrics({}, step);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(log.rows, 0) << "not for every row";
  logger.log_metrics({}, 3);
  EXPECT_TRUE(comes([&] { return log.rows == 4; }));
}

TEST(BackgroundLogger, WarningsOfItsWriterGoToTheChosenHandler) {
  KeptWarnings warnings;
  set_thread_warning_handler(&warnings);
  Log log;
  log.in_call = [] { TORCH_WARN("the disk is slow"); };
  {
    MemoryLogger logger(log, {.flush_seconds = 0.001});
    logger.log_metrics({}, 1);
    EXPECT_TRUE(comes([&] { return log.rows == 1; }));
  }
  set_thread_warning_handler(nullptr);
  EXPECT_THAT(warnings.texts, testing::ElementsAre("the disk is slow"));
}

TEST(BackgroundLogger, AFullQueueWaitsAndLosesNothing) {
  Log log;
  MemoryLogger logger(log, {.flush_seconds = 3600, .queue_rows = 4});
  std::atomic<int> logged{0};
  std::thread training;
  {
    const std::scoped_lock blocks_the_writer(log.mutex);
    training = std::thread([&] {
      for (int step = 0; step < 100; ++step) {
        logger.log_metrics({}, step);
        ++logged;
      }
    });
    // Four rows wait, and four more may be on their way to the writer.
    EXPECT_TRUE(comes([&] { return logged >= 4; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_LE(logged, 8);
  }
  training.join();
  logger.save();
  ASSERT_EQ(log.rows, 100);
  for (size_t step = 0; step < 100; ++step) EXPECT_EQ(log.calls[step], std::to_string(step));
}

TEST(BackgroundLogger, TakesRowsFromManyThreads) {
  Log log;
  MemoryLogger logger(log, {.flush_seconds = 0.001, .queue_rows = 16});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int step = 0; step < 500; ++step) logger.log_metrics({{"loss", 1.0}}, step);
      logger.save();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log.rows, 2000);
}

TEST(BackgroundLogger, AFailureIsReportedOnceByTheNextCall) {
  Log log;
  {
    MemoryLogger logger(log, {.flush_seconds = 0.001, .queue_rows = 4});
    log.fails = true;
    const auto fails = [&] {
      try {
        logger.log_metrics({{"loss", 0.5}}, 1);
      } catch (const std::runtime_error& error) {
        return std::string(error.what()) == "the disk is gone";
      }
      return false;
    };
    EXPECT_TRUE(comes(fails));
    log.fails = false;
    for (int step = 0; step < 100; ++step) logger.log_metrics({}, step);  // more rows than fit; none is kept
    logger.log_hyperparams({{"lr", 0.1}});
    logger.save();
    logger.finalize("failed");
  }
  EXPECT_TRUE(log.calls.empty());
}

TEST(BackgroundLogger, ACallThatWaitsThrowsItsOwnFailure) {
  Log log;
  MemoryLogger logger(log);
  logger.log_metrics({{"loss", 0.5}}, 1);
  log.fails = true;
  EXPECT_THROW(logger.finalize("success"), std::runtime_error);
  EXPECT_NO_THROW(logger.finalize("success"));
  EXPECT_NO_THROW(logger.log_metrics({{"loss", 0.5}}, 1));
}

TEST(BackgroundLogger, AFailureWakesACallThatWaitsForRoom) {
  Log log;
  MemoryLogger logger(log, {.flush_seconds = 3600, .queue_rows = 2});
  log.fails = true;
  EXPECT_THROW(
      {
        for (int step = 0; step < 100; ++step) logger.log_metrics({}, step);
        logger.save();
      },
      std::runtime_error);
}

TEST(BackgroundLogger, AFailureThatNoCallCanReportIsAWarning) {
  Log log;
  testing::internal::CaptureStderr();
  {
    MemoryLogger logger(log);
    logger.log_metrics({{"loss", 0.5}}, 1);
    log.fails = true;
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the memory logger has lost rows: the disk is gone"));
}

// An exception that is not a std::exception does not end the program either.
TEST(BackgroundLogger, SurvivesWhateverItsWriterThrows) {
  Log log;
  testing::internal::CaptureStderr();
  {
    MemoryLogger logger(log);
    logger.log_metrics({{"loss", 0.5}}, 1);
    log.throws_a_number = true;
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the memory logger has lost rows: an exception that is not a std::exception"));
  MemoryLogger logger(log, {.flush_seconds = 0.001});
  const auto fails = [&] {
    try {
      logger.log_metrics({{"loss", 0.5}}, 1);
    } catch (int number) {
      return number == 7;
    }
    return false;
  };
  EXPECT_TRUE(comes(fails));
}

TEST(BackgroundLogger, CountsRowsThatAreNotWrittenYet) {
  Log log;
  log.rows = 3;  // rows of an earlier run
  MemoryLogger logger(log);
  EXPECT_EQ(logger.rows(), 3);
  logger.log_metrics({{"loss", 1}}, 1);
  logger.log_metrics({{"loss", 1}}, 1);
  EXPECT_THROW(logger.log_metrics({{"", 1}}, 1), c10::ValueError);
  EXPECT_EQ(logger.rows(), 5);
  EXPECT_EQ(log.rows, 3);
  logger.save();
  EXPECT_EQ(log.rows, 5);
  EXPECT_EQ(logger.rows(), 5);
  logger.resume_from(1, 4);
  EXPECT_EQ(logger.rows(), 4);
  EXPECT_EQ(log.calls.back(), "resume 1 with 4");
  logger.resume_from(1);
  EXPECT_EQ(log.calls.back(), "resume 1");
  EXPECT_THROW(logger.resume_from(1, -1), c10::ValueError);
  log.fails = true;
  EXPECT_THROW(logger.finalize("success"), std::runtime_error);
  EXPECT_EQ(logger.rows(), std::nullopt);
}

TEST(BackgroundLogger, CountsARowThatIsLoggedWhileOthersAreDiscarded) {
  Log log;
  MemoryLogger logger(log);
  log.in_call = [&] { logger.log_metrics({}, 2); };
  logger.resume_from(1, 4);
  EXPECT_EQ(logger.rows(), 5);
}

TEST(BackgroundLogger, HasNoCountIfItsWriterDoesNotCount) {
  Log log;
  log.counts = false;
  MemoryLogger logger(log);
  logger.log_metrics({{"loss", 1}}, 1);
  logger.resume_from(0);
  EXPECT_EQ(logger.rows(), std::nullopt);
}

// A logger that a user wrote need not count rows.
TEST(BackgroundLogger, ALoggerWithoutARowCountResumesByTheStep) {
  struct BySteps final : Logger {
    std::string name() const override { return "by steps"; }
    void log_metrics(MetricValues, int64_t) override {}
    void log_hyperparams(const Hyperparameters&) override {}
    void resume_from(int64_t step) override { resumed = step; }
    int64_t resumed = 0;
  } logger;
  Logger& any = logger;
  EXPECT_EQ(any.rows(), std::nullopt);
  any.resume_from(5, 2);
  EXPECT_EQ(logger.resumed, 5);
}

TEST(BackgroundLogger, RefusesNamesThatFormatsCannotKeep) {
  Log log;
  MemoryLogger logger(log);
  for (const char* name : {"", "step", "wall_time", "a\nb", "\xff", "cut \xce"}) {
    EXPECT_THROW(logger.log_metrics({{"good", 1}, {name, 1}}, 0), c10::ValueError) << name;
  }
  EXPECT_THROW(logger.log_hyperparams({{"", true}}), c10::ValueError);
  EXPECT_THROW(logger.log_hyperparams({{"path", "\xff"}}), c10::ValueError);
  logger.log_metrics({{"λ/x, \"y\"", 1}}, 0);
  logger.save();
  EXPECT_EQ(log.rows, 1);
}

TEST(BackgroundLogger, RefusesOptionsThatCannotWork) {
  Log log;
  EXPECT_THROW(MemoryLogger(log, {.flush_seconds = 0}), c10::ValueError);
  EXPECT_THROW(MemoryLogger(log, {.flush_seconds = 3601}), c10::ValueError);
  EXPECT_THROW(MemoryLogger(log, {.flush_seconds = std::nan("")}), c10::ValueError);
  EXPECT_THROW(MemoryLogger(log, {.queue_rows = 1}), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::background_logger_test
