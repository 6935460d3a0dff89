#include "mantissa/core/code_tables.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

namespace mantissa::code_tables_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// FNV-1a over the bytes of the values, lowest byte first.
template <size_t N>
uint64_t hash(const float (&values)[N]) {
  uint64_t result = 0xcbf29ce484222325;
  for (const float value : values)
    for (int shift = 0; shift < 32; shift += 8)
      result = (result ^ (std::bit_cast<uint32_t>(value) >> shift & 0xff)) * 0x100000001b3;
  return result;
}

TEST(CodeTables, Q01_Q35_HaveTheBitsOfBitsandbytes) {
  EXPECT_EQ(hash(kNF4Values), 0x38e10558c37c2c71);
  EXPECT_EQ(hash(kNF4Thresholds), 0x6b792fed41349862);
  EXPECT_EQ(hash(kFP4Values), 0x34e98e13e945d335);
  EXPECT_EQ(hash(kFP4Thresholds), 0xe009ed087ad64cf9);
  EXPECT_EQ(hash(kDynamicSigned), 0xd677f22a96665bc4);
  EXPECT_EQ(hash(kDynamicUnsigned), 0x43811b16730a873e);
}

/// The map's definition: in each decade from 1e-6 to 1, the midpoints of equal parts between 0.1 and 1.
std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> values = {0, 1};
  for (int exponent = 0; exponent < 7; ++exponent) {
    const int parts = 1 << (is_signed ? exponent : exponent + 1);
    for (int i = 0; i < parts; ++i) {
      const double value = (0.1 + 0.9 * (i + 0.5) / parts) * std::pow(10, exponent - 6);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

void expect_near(const float (&table)[256], const std::vector<double>& expected) {
  ASSERT_EQ(expected.size(), 256U);
  for (int i = 0; i < 256; ++i)
    EXPECT_NEAR(table[i], expected[i], std::abs(expected[i]) * 2 * std::numeric_limits<float>::epsilon());
}

// The same definition with three decades. torchao's numbers are float32 from the start.
TEST(CodeTables, TheMapOf4BitsFollowsItsDefinition) {
  std::vector<double> values = {0, 1};
  for (int exponent = 0; exponent < 3; ++exponent) {
    for (int i = 0; i < 1 << exponent; ++i) {
      const double value = (0.1 + 0.9 * (i + 0.5) / (1 << exponent)) * std::pow(10, exponent - 2);
      values.push_back(value), values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  ASSERT_EQ(values.size(), 16U);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(kDynamic4Signed[i], values[i], std::abs(values[i]) * 2e-7);
  for (int code = 1; code < 16; ++code) {
    const float least = least_of_dynamic4_code(code);
    const double middle = (static_cast<double>(kDynamic4Signed[code]) + kDynamic4Signed[code - 1]) / 2;
    EXPECT_NEAR(least, middle, std::abs(middle) * 4e-7) << code;
  }
}

TEST(CodeTables, Q35_DynamicMapsFollowTheirDefinition) {
  expect_near(kDynamicSigned, dynamic_map(true));
  expect_near(kDynamicUnsigned, dynamic_map(false));
}

TEST(CodeTables, Q36_DynamicMapsAscendAndHaveNoMinusOne) {
  for (const auto* table : {&kDynamicSigned, &kDynamicUnsigned})
    EXPECT_EQ(std::adjacent_find(std::begin(*table), std::end(*table), std::greater_equal<>()),
              std::end(*table));
  EXPECT_EQ(kDynamicSigned[127], 0);
  EXPECT_EQ(kDynamicSigned[255], 1);
  EXPECT_EQ(kDynamicUnsigned[0], 0);
  EXPECT_EQ(kDynamicUnsigned[255], 1);
  EXPECT_GT(kDynamicSigned[0], -0.993F);
}

TEST(CodeTables, NF4ValuesAreQuantilesOfTheNormalDistribution) {
  // Between two values lies the same share of the distribution on each side of zero.
  const double scale = 1.8481308;  // the quantile of 0.9677083, by which all are divided
  const auto share = [&](float value) { return std::erfc(-value * scale / std::sqrt(2)) / 2; };
  for (int i = 0; i < 15; ++i)
    EXPECT_NEAR(share(kNF4Values[i + 1]) - share(kNF4Values[i]), 0.4677083 / (i < 7 ? 7 : 8), 1e-5) << i;
}

TEST(CodeTables, Q07_EveryValueHasItsOwnCode) {
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(nf4_code(kNF4Values[code]), code);
    EXPECT_EQ(fp4_code(kFP4Values[code]), code == 8 ? 0 : code) << "code 8 is a second zero";
  }
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(nearest_code(kDynamicSigned, kDynamicSigned[code]), code);
    EXPECT_EQ(nearest_code(kDynamicUnsigned, kDynamicUnsigned[code]), code);
  }
}

TEST(CodeTables, Q08_ATieGoesToTheLowerNF4CodeAndTheSmallerFP4Magnitude) {
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(nf4_code(kNF4Thresholds[i]), i);
    EXPECT_EQ(nf4_code(std::nextafter(kNF4Thresholds[i], 2.0F)), i + 1);
  }
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(fp4_code(kFP4Thresholds[i]), kFP4Magnitudes[i]);
    EXPECT_EQ(fp4_code(-kFP4Thresholds[i]), kFP4Magnitudes[i] | 8);
    EXPECT_EQ(fp4_code(std::nextafter(kFP4Thresholds[i], 2.0F)), kFP4Magnitudes[i + 1]);
  }
}

TEST(CodeTables, TheNearestValueIsFoundAndATieGoesToTheLowerCode) {
  EXPECT_EQ(kDynamicSigned[nearest_code(kDynamicSigned, -1.0F)], kDynamicSigned[0]);
  EXPECT_EQ(nearest_code(kDynamicSigned, 2.75e-7F), 127) << "half of the smallest value";
  EXPECT_EQ(nearest_code(kDynamicSigned, 2.76e-7F), 128);
  EXPECT_EQ(nearest_code(kDynamicUnsigned, -3.0F), 0);
  for (int i = 0; i < 255; ++i) {
    const double midpoint = (static_cast<double>(kDynamicUnsigned[i]) + kDynamicUnsigned[i + 1]) / 2;
    EXPECT_EQ(nearest_code(kDynamicUnsigned, static_cast<float>(midpoint * (1 - 1e-6))), i);
    EXPECT_EQ(nearest_code(kDynamicUnsigned, static_cast<float>(midpoint * (1 + 1e-6))), i + 1);
  }
}

TEST(CodeTables, NaNAndZeroHaveCodes) {
  EXPECT_EQ(nf4_code(kNaN), 0);
  EXPECT_EQ(fp4_code(kNaN), 0);
  EXPECT_EQ(nearest_code(kDynamicSigned, kNaN), 0);
  EXPECT_EQ(nf4_code(0), 7);
  EXPECT_EQ(fp4_code(-0.0F), 0);
  EXPECT_EQ(fp4_code(-1e-9F), 8) << "a second zero";
}

}  // namespace
}  // namespace mantissa::code_tables_test
