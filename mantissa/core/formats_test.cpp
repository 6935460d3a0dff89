#include "mantissa/core/formats.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <set>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

namespace mantissa::formats_test {
namespace {

template <typename T>
void expect_limits(Format format) {
  using Limits = std::numeric_limits<T>;
  const FormatInfo& row = info(format);
  EXPECT_EQ(row.largest, static_cast<double>(Limits::max())) << row.name;
  EXPECT_EQ(row.smallest_normal, static_cast<double>(Limits::min())) << row.name;
  EXPECT_EQ(row.smallest_subnormal, static_cast<double>(Limits::denorm_min())) << row.name;
  EXPECT_EQ(row.mantissa_bits, Limits::digits - 1) << row.name;
  EXPECT_EQ(row.bits, static_cast<int>(8 * sizeof(T))) << row.name;
}

TEST(Formats, HaveTheLimitsOfTheirTypes) {
  expect_limits<double>(Format::kFloat64);
  expect_limits<float>(Format::kFloat32);
  expect_limits<c10::BFloat16>(Format::kBFloat16);
  expect_limits<c10::Half>(Format::kFloat16);
  expect_limits<c10::Float8_e4m3fn>(Format::kFloat8E4M3);
  expect_limits<c10::Float8_e5m2>(Format::kFloat8E5M2);
  const FormatInfo &tf32 = info(Format::kTF32), &float32 = info(Format::kFloat32);
  EXPECT_EQ(tf32.mantissa_bits, info(Format::kFloat16).mantissa_bits) << "fp16's precision";
  EXPECT_EQ(tf32.smallest_normal, float32.smallest_normal) << "float32's range";
  EXPECT_EQ(tf32.largest, 0x1.FFCp127);
}

TEST(Formats, EveryFormatHasARowAndANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const FormatInfo& row : formats()) {
    EXPECT_EQ(&info(row.format), &row);
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    // The bits are a sign, an exponent and a mantissa; TF32 is stored in 32 bits.
    if (row.exponent_bits > 0 && row.format != Format::kTF32) {
      EXPECT_EQ(row.bits, 1 + row.exponent_bits + row.mantissa_bits) << row.name;
    }
    EXPECT_LE(row.smallest_subnormal, row.smallest_normal);
    EXPECT_LE(row.smallest_normal, row.largest);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Format::kFP4) + 1);
}

TEST(Formats, ADtypeNamesItsFormat) {
  EXPECT_EQ(format_of(at::kFloat), Format::kFloat32) << "TF32 is no dtype";
  EXPECT_EQ(format_of(at::kBFloat16), Format::kBFloat16);
  EXPECT_EQ(format_of(at::kComplexDouble), Format::kFloat64) << "of the parts";
  EXPECT_EQ(format_of(at::kFloat8_e5m2), Format::kFloat8E5M2);
  for (const at::ScalarType none : {at::kLong, at::kBool, at::kByte, at::kChar})
    EXPECT_EQ(format_of(none), std::nullopt) << none;
  EXPECT_TRUE(is_16_bit(Format::kFloat16) && is_16_bit(Format::kBFloat16));
  EXPECT_FALSE(is_16_bit(Format::kTF32) || is_16_bit(Format::kFloat8E4M3));
}

}  // namespace
}  // namespace mantissa::formats_test
