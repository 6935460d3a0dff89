// Tests which names a logger accepts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/trainer/loggers/log_name_internal.h"

namespace mantissa::log_names_test {
namespace {

TEST(LogNames, AreUtf8WithoutControlCharacters) {
  const auto error = [](const std::string& name) { return error_of([&] { check_log_name("log", name); }); };
  for (const std::string good : {"x", "val/loss", "~", " ", "\xc2\x80", "Verlust in \xe2\x82\xac"})
    EXPECT_EQ(error(good), "no error") << good;
  for (const std::string bad : {"", "\x1f", "\x7f", "\x80", "a\xff", "\xc2"})
    EXPECT_THAT(error(bad), testing::HasSubstr("is empty, is not UTF-8 or has control characters")) << bad;
}

}  // namespace
}  // namespace mantissa::log_names_test
