#include "mantissa/io/crc32c.h"

#include <gtest/gtest.h>
#include <numeric>
#include <string>

namespace mantissa::crc32c_test {
namespace {

TEST(Crc32c, HasTheValuesOfRfc3720) {
  std::string up(32, '\0');
  std::iota(up.begin(), up.end(), '\0');
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aa);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43);
  EXPECT_EQ(crc32c(up), 0x46dd794e);
  EXPECT_EQ(crc32c(std::string(up.rbegin(), up.rend())), 0x113fdb5c);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283);
  EXPECT_EQ(crc32c(""), 0);
}

}  // namespace
}  // namespace mantissa::crc32c_test
