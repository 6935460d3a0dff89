#include "mantissa/trainer/loop/interrupt.h"

#include <csignal>
#include <gtest/gtest.h>

namespace mantissa::interrupt_test {
namespace {

TEST(InterruptScope, TurnsTheFirstSignalIntoARequest) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    InterruptScope scope;
    EXPECT_EQ(InterruptScope::requested(), 0);
    std::raise(signal);
    EXPECT_EQ(InterruptScope::requested(), signal);
  }
  EXPECT_EQ(InterruptScope::requested(), 0);  // a later run starts fresh
}

TEST(InterruptScope, TheSecondSignalKills) {
  EXPECT_EXIT(
      {
        InterruptScope scope;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptScope, LeavesAnIgnoredSignalIgnoredAndRestoresTheHandlerBefore) {
  struct sigaction mine {};
  mine.sa_handler = SIG_IGN;
  struct sigaction before {};
  sigaction(SIGINT, &mine, &before);
  {
    InterruptScope outer;
    InterruptScope inner;  // nesting changes nothing
    std::raise(SIGINT);
    EXPECT_EQ(InterruptScope::requested(), 0);  // a signal that nohup or a shell has ignored stays ignored
  }
  struct sigaction after {};
  sigaction(SIGINT, &before, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(InterruptScope, RestoresAHandlerOfOnesOwn) {
  const auto mine = [](int) {};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const auto before = std::signal(signal, mine);
    { const InterruptScope scope; }
    EXPECT_EQ(std::signal(signal, before), static_cast<void (*)(int)>(mine)) << signal;
  }
}

}  // namespace
}  // namespace mantissa::interrupt_test
