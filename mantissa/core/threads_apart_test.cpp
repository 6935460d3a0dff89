#include "mantissa/core/threads_apart.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/threads_apart_internal.h"

namespace mantissa::threads_apart {

void PrintTo(const Move& move, std::ostream* out) { *out << move.thread << " to " << move.cpu; }

}  // namespace mantissa::threads_apart

namespace mantissa::threads_apart_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using threads_apart::Move;
using threads_apart::moves;
using threads_apart::RunningThread;

auto anywhere(int cpus) {
  return [cpus](pid_t) {
    std::vector<int> all(cpus);
    for (int i = 0; i < cpus; ++i) all[i] = i;
    return all;
  };
}

TEST(ThreadsApart, TwoOnOneProcessorArePartedByMovingTheYounger) {
  EXPECT_THAT(moves({{10, 1}, {11, 1}}, anywhere(2)), ElementsAre(Move{11, 0}));
  EXPECT_THAT(moves({{10, 0}, {11, 0}}, anywhere(2)), ElementsAre(Move{11, 1}));
}

TEST(ThreadsApart, WhoIsApartStays) {
  EXPECT_THAT(moves({}, anywhere(2)), IsEmpty());
  EXPECT_THAT(moves({{10, 1}}, anywhere(2)), IsEmpty());
  EXPECT_THAT(moves({{10, 1}, {11, 0}}, anywhere(2)), IsEmpty());
  EXPECT_THAT(moves({{10, 1}, {11, 0}, {12, 0}}, anywhere(2)), IsEmpty()) << "more threads than processors";
  EXPECT_THAT(moves({{10, 0}, {11, 0}}, anywhere(1)), IsEmpty()) << "nowhere to go";
}

TEST(ThreadsApart, EachGoesToTheNextProcessorThatHasNone) {
  EXPECT_THAT(moves({{10, 2}, {11, 2}, {12, 2}, {13, 0}}, anywhere(4)),
              ElementsAre(Move{12, 3}, Move{11, 1}));
  EXPECT_THAT(moves({{10, 0}, {11, 0}, {12, 0}, {13, 0}, {14, 0}}, anywhere(2)),
              ElementsAre(Move{14, 1}, Move{13, 1}))
      << "as many here as there, but for one";
}

TEST(ThreadsApart, NoThreadGoesWhereItMayNotRun) {
  const auto bound = [](pid_t thread) {
    return thread == 11 ? std::vector<int>{1} : std::vector<int>{0, 1, 3};
  };
  EXPECT_THAT(moves({{10, 1}, {11, 1}}, bound), ElementsAre(Move{10, 3})) << "the younger one is bound";
  EXPECT_THAT(moves({{10, 1}, {11, 1}}, [](pid_t) { return std::vector<int>(); }), IsEmpty())
      << "they have ended meanwhile";
}

/// A thread that computes until it is destroyed.
class Spinning {
 public:
  Spinning() {
    while (id_ == 0) std::this_thread::yield();
  }
  ~Spinning() {
    is_over_ = true;
    thread_.join();
  }
  Spinning(const Spinning&) = delete;
  Spinning& operator=(const Spinning&) = delete;

  [[nodiscard]] pid_t id() const { return id_; }
  [[nodiscard]] int cpu() const { return cpu_; }

 private:
  std::atomic<bool> is_over_ = false;
  std::atomic<pid_t> id_ = 0;
  std::atomic<int> cpu_ = -1;
  std::thread thread_{[this] {
    id_ = static_cast<pid_t>(::syscall(SYS_gettid));
    while (!is_over_) cpu_ = sched_getcpu();
  }};
};

TEST(ThreadsApart, RunningThreadsAreFoundWithTheirProcessors) {
  const Spinning spinning;
  const std::vector<int> allowed = threads_apart::allowed_cpus(spinning.id());
  ASSERT_FALSE(allowed.empty());
  const auto running = threads_apart::running_threads();
  const auto found = std::find_if(running.begin(), running.end(),
                                  [&](const RunningThread& each) { return each.id == spinning.id(); });
  ASSERT_NE(found, running.end());
  EXPECT_THAT(allowed, testing::Contains(found->cpu));
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  EXPECT_TRUE(
      std::none_of(running.begin(), running.end(), [&](const auto& each) { return each.id == self; }));
}

TEST(ThreadsApart, AThreadThatWaitsOrHasEndedIsNotRunning) {
  pid_t ended = 0;
  {
    const Spinning spinning;
    ended = spinning.id();
  }
  const auto running = threads_apart::running_threads();
  EXPECT_TRUE(
      std::none_of(running.begin(), running.end(), [&](const auto& each) { return each.id == ended; }));
  EXPECT_THAT(threads_apart::allowed_cpus(ended), IsEmpty());
  threads_apart::carry_out({ended, 0});  // the thread has ended, so this does nothing
}

TEST(ThreadsApart, AMoveIsMadeAtOnceAndBindsNothing) {
  const Spinning spinning;
  const std::vector<int> allowed = threads_apart::allowed_cpus(spinning.id());
  if (allowed.size() < 2) GTEST_SKIP() << "one processor";
  std::vector<int> visited;
  for (const int cpu : allowed) {
    // The kernel may move the thread away at any time, but not each time.
    for (int attempt = 0; attempt < 1000 && (visited.empty() || visited.back() != cpu); ++attempt) {
      threads_apart::carry_out({spinning.id(), cpu});
      for (int look = 0; look < 1000 && spinning.cpu() != cpu; ++look) std::this_thread::yield();
      if (spinning.cpu() == cpu) visited.push_back(cpu);
    }
    EXPECT_EQ(threads_apart::allowed_cpus(spinning.id()), allowed);
  }
  EXPECT_EQ(visited, allowed);
}

/// Returns how many threads of this process watch the others.
int watchers() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    count += name == "threads-apart" ? 1 : 0;
  }
  return count;
}

TEST(ThreadsApart, BeginOnceAndUnlessTheEnvironmentForbidsIt) {
  ASSERT_EQ(setenv("MANTISSA_KEEP_THREADS_APART", "no", 1), 0);
  EXPECT_THROW(keep_threads_apart(), c10::ValueError);
  ASSERT_EQ(setenv("MANTISSA_KEEP_THREADS_APART", "0", 1), 0);
  keep_threads_apart();
  EXPECT_EQ(watchers(), 0);
  unsetenv("MANTISSA_KEEP_THREADS_APART");
  keep_threads_apart();
  keep_threads_apart();
  while (watchers() == 0) std::this_thread::yield();  // a new thread first has its parent's name
  EXPECT_EQ(watchers(), 1);
}

}  // namespace
}  // namespace mantissa::threads_apart_test
