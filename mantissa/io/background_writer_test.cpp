// Run under ThreadSanitizer too (`--preset tsan`): nothing here uses libtorch's own threads.
#include "mantissa/io/background_writer.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/core/thread_warnings.h"

namespace mantissa::background_writer_test {
namespace {

using testing::ElementsAre;

/// Lets a job wait until the test opens the gate.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST(BackgroundWriter, RunsEveryJobInOrder) {
  std::vector<int> done;
  {
    BackgroundWriter writer(3);
    for (int i = 0; i < 100; ++i) writer.post([&done, i] { done.push_back(i); });
    writer.flush();
    EXPECT_EQ(done.size(), 100u);
    for (int i = 100; i < 110; ++i) writer.post([&done, i] { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 110u);
  for (int i = 0; i < 110; ++i) EXPECT_EQ(done[size_t(i)], i);
}

TEST(BackgroundWriter, TheCallerDoesNotWaitForTheJob) {
  Gate gate;
  BackgroundWriter writer(2);
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 2; ++i) {
    writer.post([&] {
      gate.wait();
      threads.push_back(std::this_thread::get_id());
    });
  }
  gate.open();  // reached although no job has ended
  writer.flush();
  EXPECT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0], threads[1]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(BackgroundWriter, WaitsForRoom) {
  Gate gate;
  std::atomic<int> posted = 0;
  BackgroundWriter writer(1);
  std::thread caller([&] {
    for (int i = 0; i < 4; ++i) {
      writer.post([&] { gate.wait(); });
      ++posted;
    }
  });
  // One job runs, one waits, and the third finds no room.
  while (posted < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(posted, 2);
  std::atomic<bool> found_room = false;
  std::thread other([&] {
    writer.wait_for_room();
    found_room = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(found_room);
  gate.open();
  caller.join();
  other.join();
  writer.flush();
  EXPECT_EQ(posted, 4);
}

TEST(BackgroundWriter, ErrorsComeBackOnceAndLoseNoJob) {
  std::vector<std::string> done;
  BackgroundWriter writer(8);
  Gate gate;
  writer.post([&] {
    gate.wait();
    throw std::runtime_error("disk full");
  });
  writer.post([] { throw std::runtime_error("read-only"); });
  writer.post([&] { done.emplace_back("third"); });
  gate.open();
  EXPECT_EQ(error_of<std::runtime_error>([&] { writer.flush(); }), "disk full");
  EXPECT_EQ(error_of<std::runtime_error>([&] { writer.post([&] { done.emplace_back("fourth"); }); }),
            "read-only");
  EXPECT_EQ(error_of<std::runtime_error>([&] { writer.flush(); }), "no error");
  EXPECT_THAT(done, ElementsAre("third", "fourth"));
}

TEST(BackgroundWriter, AnExceptionInFlightLosesNoJob) {
  Gate gate;
  std::vector<int> done;
  std::thread opener;
  EXPECT_EQ(error_of<std::runtime_error>([&] {
              BackgroundWriter writer(4);
              for (int i = 0; i < 3; ++i) {
                writer.post([&, i] {
                  gate.wait();
                  done.push_back(i);
                });
              }
              opener = std::thread([&] { gate.open(); });
              throw std::runtime_error("callback");
            }),
            "callback");
  opener.join();
  EXPECT_THAT(done, ElementsAre(0, 1, 2));
}

TEST(BackgroundWriter, WarnsOfErrorsThatNobodyAskedFor) {
  testing::internal::CaptureStderr();
  {
    Gate gate;
    BackgroundWriter writer(2);
    writer.post([&] {
      gate.wait();  // otherwise the next post() might already get the error
      throw std::runtime_error("disk full");
    });
    writer.post([] { throw 3; });
    gate.open();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("a last job failed: disk full"));
}

TEST(BackgroundWriter, TheWarningsOfAJobGoWhereThoseOfThreadsGo) {
  KeptWarnings warnings;
  set_thread_warning_handler(&warnings);
  BackgroundWriter writer;
  writer.post([] { TORCH_WARN("the disk is slow"); });
  writer.flush();
  set_thread_warning_handler(nullptr);
  EXPECT_THAT(warnings.texts, testing::ElementsAre("the disk is slow"));
}

TEST(BackgroundWriter, FreesWhatAJobHeldBeforeFlushReturns) {
  BackgroundWriter writer;
  auto held = std::make_shared<int>(3);
  const std::weak_ptr<int> watched = held;
  writer.post([held = std::move(held)] { EXPECT_EQ(*held, 3); });
  writer.flush();
  EXPECT_TRUE(watched.expired());
}

TEST(BackgroundWriter, TakesJobsFromManyThreads) {
  std::atomic<int> started = 0;
  int done = 0;  // only the writer's thread increments it
  {
    BackgroundWriter writer(2);
    std::vector<std::thread> callers;
    for (int t = 0; t < 4; ++t) {
      callers.emplace_back([&] {
        ++started;
        for (int i = 0; i < 200; ++i) writer.post([&] { ++done; });
        writer.flush();
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  EXPECT_EQ(done, 800);
}

}  // namespace
}  // namespace mantissa::background_writer_test
