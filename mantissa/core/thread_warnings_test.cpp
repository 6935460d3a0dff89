#include "mantissa/core/thread_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>

#include <c10/util/Exception.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::thread_warnings_test {
namespace {

void warn_in_a_thread(const char* text) {
  std::thread([text] {
    use_thread_warning_handler();
    TORCH_WARN(text);
  }).join();
}

TEST(ThreadWarnings, GoWhereTheProgramSentThem) {
  KeptWarnings kept;
  set_thread_warning_handler(&kept);
  warn_in_a_thread("chosen");
  set_thread_warning_handler(nullptr);
  warn_in_a_thread("libtorch's own prints this one");
  EXPECT_THAT(kept.texts, testing::ElementsAre("chosen"));
}

TEST(ThreadWarnings, LeaveTheCallersOwnHandlerWhereNoneWasChosen) {
  KeptWarnings own;
  const c10::WarningUtils::WarningHandlerGuard guard(&own);
  use_thread_warning_handler();
  TORCH_WARN("here");
  EXPECT_THAT(own.texts, testing::ElementsAre("here"));
}

}  // namespace
}  // namespace mantissa::thread_warnings_test
