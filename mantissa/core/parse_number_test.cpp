#include "mantissa/core/parse_number.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

namespace mantissa::parse_number_test {
namespace {

using testing::HasSubstr;

TEST(ParseNumber, ReadsAllThatTheTypeHolds) {
  EXPECT_EQ(parse_number<int64_t>("-9223372036854775808").value, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_number<int64_t>("9223372036854775807").value, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_number<uint64_t>("0").value, 0U);
  EXPECT_EQ(parse_number<uint64_t>("18446744073709551615").value, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse_number<double>("1.7976931348623157e308").value, std::numeric_limits<double>::max());
  EXPECT_EQ(parse_number<double>("5e-324").value, std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(parse_number<double>("-0").value, 0.0);
  EXPECT_EQ(parse_number<double>("0e-999").value, 0.0) << "0 is no underflow";
  EXPECT_EQ(parse_number<double>("inf").value, HUGE_VAL) << "is asked for as such";
}

TEST(ParseNumber, NegativeNumbersAreOutOfTheRangeOfSeeds) {
  for (const char* text : {"-1", "-0", "-9223372036854775808", "-9223372036854775809"}) {
    const auto parsed = parse_number<uint64_t>(text);
    EXPECT_TRUE(parsed.is_out_of_range) << text;
    EXPECT_THAT(parsed.problem, HasSubstr("is out of range: choose a whole number from 0 to "));
  }
  for (const char* text : {"--1", "-", "-x"})
    EXPECT_THAT(parse_number<uint64_t>(text).problem, HasSubstr("is not a whole number")) << text;
}

TEST(ParseNumber, TellsUnderflowFromOverflow) {
  for (const char* text : {"1e-400", "-1e-400", "0.000001e-330"}) {
    const auto parsed = parse_number<double>(text);
    EXPECT_FALSE(parsed.value) << text;
    EXPECT_TRUE(parsed.is_out_of_range) << text;
    EXPECT_THAT(parsed.problem,
                HasSubstr(std::string("'") + text + "' is out of range: it would become 0 in float64"));
  }
  for (const char* text : {"1e400", "-1e400", "10000e308"}) {
    const auto parsed = parse_number<double>(text);
    EXPECT_TRUE(parsed.is_out_of_range) << text;
    EXPECT_THAT(parsed.problem, HasSubstr("float64 has no number above 1.8e308; give a smaller one"));
  }
}

TEST(ParseNumber, NamesTheRangeOfWholeNumbers) {
  EXPECT_THAT(parse_number<uint64_t>("18446744073709551616").problem,
              HasSubstr("'18446744073709551616' is out of range: choose a whole number from 0 to "
                        "18446744073709551615"));
  EXPECT_THAT(parse_number<int64_t>("9223372036854775808").problem, HasSubstr("to 9223372036854775807"));
}

TEST(ParseNumber, WhatIsNoNumberIsSaidToBeNone) {
  for (const char* text : {"", " ", "abc", "1x", "0x10", " 1", "1 "}) {
    EXPECT_EQ(parse_number<double>(text).problem, std::string("'") + text + "' is not a number; give one");
    const auto whole = parse_number<int64_t>(text);
    EXPECT_EQ(whole.problem, std::string("'") + text + "' is not a whole number; give one");
    EXPECT_FALSE(whole.is_out_of_range);
  }
  EXPECT_FALSE(parse_number<uint64_t>("1.5").value);
}

}  // namespace
}  // namespace mantissa::parse_number_test
