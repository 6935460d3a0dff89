#include "mantissa/io/value_summary.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

namespace mantissa::value_summary_test {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInf = std::numeric_limits<double>::infinity();

std::vector<int64_t> counts(const ValueSummary& s) {
  return {s.values, s.nans, s.infs, s.zeros, s.denormals};
}

/// Returns a tensor with every bit pattern of one byte.
at::Tensor every_byte(at::ScalarType dtype) { return at::arange(256, at::kByte).view(dtype); }

TEST(ValueSummary, CountsInEveryFloatingDtype) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e5m2}) {
    // The smallest number of the dtype besides 0, which is denormal.
    const at::Tensor bits = at::zeros({int64_t(c10::elementSize(dtype))}, at::kByte);
    bits[0] = 1;
    const at::Tensor wide = at::tensor({kNan, 1.5, -kInf, 0.0, -0.0, kInf, -2.0}, at::kDouble);
    const at::Tensor x = at::cat({wide.to(dtype).view(at::kByte), bits}).view(dtype);
    const ValueSummary s = summarize_values(x);
    EXPECT_EQ(counts(s), (std::vector<int64_t>{8, 1, 2, 2, 1})) << dtype;
    EXPECT_EQ(std::get<double>(s.min), -2) << dtype;
    EXPECT_EQ(std::get<double>(s.max), 1.5) << dtype;
    EXPECT_NEAR(double(s.mean), -0.1, 1e-5) << dtype;
  }
}

// From the formats' definitions, OCP 8-bit floating point, sections 3 and 4: e4m3 has no inf, e8m0 no 0 and
// no denormals.
TEST(ValueSummary, EveryBitPatternOfEightBits) {
  EXPECT_EQ(counts(summarize_values(every_byte(at::kFloat8_e4m3fn))),
            (std::vector<int64_t>{256, 2, 0, 2, 14}));
  EXPECT_EQ(counts(summarize_values(every_byte(at::kFloat8_e5m2))), (std::vector<int64_t>{256, 6, 2, 2, 6}));
  EXPECT_EQ(counts(summarize_values(every_byte(at::kFloat8_e8m0fnu))),
            (std::vector<int64_t>{256, 1, 0, 0, 0}));
  EXPECT_EQ(std::get<double>(summarize_values(every_byte(at::kFloat8_e4m3fn)).max), 448);
  EXPECT_EQ(std::get<double>(summarize_values(every_byte(at::kFloat8_e5m2)).max), 57344);
  EXPECT_EQ(std::get<double>(summarize_values(every_byte(at::kFloat8_e8m0fnu)).min), std::ldexp(1, -127));
}

TEST(ValueSummary, TheLimitsOfADtypeAreNormalAndFinite) {
  constexpr double kMin = std::numeric_limits<double>::min(), kMax = std::numeric_limits<double>::max();
  const at::Tensor wide = at::tensor({kMax, -kMax, kMin, -kMin, std::nextafter(kMin, 0.0)}, at::kDouble);
  EXPECT_EQ(counts(summarize_values(wide)), (std::vector<int64_t>{5, 0, 0, 0, 1}));
  EXPECT_EQ(std::get<double>(summarize_values(wide).max), kMax);
  constexpr float kFloatMin = std::numeric_limits<float>::min(),
                  kFloatMax = std::numeric_limits<float>::max();
  const at::Tensor narrow = at::tensor({kFloatMax, -kFloatMin, kFloatMin / 2, 0.f});
  EXPECT_EQ(counts(summarize_values(narrow)), (std::vector<int64_t>{4, 0, 0, 1, 1}));
}

TEST(ValueSummary, WholeNumbersAreExact) {
  const int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  const ValueSummary s = summarize_values(at::tensor({high, int64_t(0), low}, at::kLong));
  EXPECT_EQ(std::get<int64_t>(s.min), low);
  EXPECT_EQ(std::get<int64_t>(s.max), high);
  EXPECT_EQ(counts(s), (std::vector<int64_t>{3, 0, 0, 1, 0}));
  const ValueSummary u = summarize_values(at::tensor({int64_t(-1), int64_t(7)}, at::kLong).view(at::kUInt64));
  EXPECT_EQ(std::get<uint64_t>(u.max), std::numeric_limits<uint64_t>::max());
  for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kUInt16, at::kInt, at::kUInt32}) {
    const ValueSummary one = summarize_values(at::tensor({3, 0, 4, 5}, at::kLong).to(dtype));
    EXPECT_EQ(std::get<int64_t>(one.max), 5) << dtype;
    EXPECT_EQ(double(one.mean), 3) << dtype;
    EXPECT_EQ(one.zeros, 1) << dtype;
  }
  const ValueSummary b = summarize_values(at::tensor({1, 0, 1, 1}, at::kLong).to(at::kBool));
  EXPECT_EQ(double(b.mean), 0.75);
  EXPECT_EQ(std::get<int64_t>(b.min), 0);
}

TEST(ValueSummary, ComplexIsItsParts) {
  const at::Tensor z = at::complex(at::tensor({1.f, float(kNan)}), at::tensor({float(-kInf), 3.f}));
  const ValueSummary s = summarize_values(z.conj());
  EXPECT_EQ(counts(s), (std::vector<int64_t>{4, 1, 1, 0, 0}));
  EXPECT_EQ(std::get<double>(s.min), -3);  // the minimum of the conjugate
  EXPECT_EQ(std::get<double>(s.max), 1);
}

TEST(ValueSummary, EmptyAndNoFiniteValue) {
  EXPECT_EQ(counts(summarize_values(at::empty({0, 3}))), (std::vector<int64_t>{0, 0, 0, 0, 0}));
  const ValueSummary s = summarize_values(at::full({}, kNan));
  EXPECT_EQ(s.finite(), 0);
  EXPECT_EQ(s.std(), 0);
  EXPECT_EQ(std::get<double>(summarize_values(at::full({}, 3.0)).min), 3);
}

TEST(ValueSummary, MeanAndStdOverManyBlocksAndPieces) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({300'001}, at::kDouble) * 0.5 + 1000;
  const ValueSummary whole = summarize_values(x);
  EXPECT_NEAR(double(whole.mean), x.mean().item<double>(), 1e-10);
  EXPECT_NEAR(whole.std(), x.std(/*unbiased=*/false).item<double>(), 1e-10);
  ValueSummary pieces;
  for (const at::Tensor& piece : x.split(77'777)) pieces.add(summarize_values(piece));
  EXPECT_EQ(counts(pieces), counts(whole));
  EXPECT_EQ(pieces.min, whole.min);
  EXPECT_EQ(pieces.max, whole.max);
  EXPECT_NEAR(double(pieces.mean), double(whole.mean), 1e-12);
  EXPECT_NEAR(pieces.std(), whole.std(), 1e-12);
}

TEST(ValueSummary, EveryNumberOfValuesMakesWholeBlocksAndARest) {
  constexpr int64_t kBlock = 1 << 15;
  for (const int64_t n : {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock - 1, 2 * kBlock}) {
    const ValueSummary s = summarize_values(at::ones({n}));
    EXPECT_EQ(counts(s), (std::vector<int64_t>{n, 0, 0, 0, 0}));
    EXPECT_EQ(double(s.mean), 1) << n;
  }
}

TEST(ValueSummary, FirstPiecesWithoutFiniteValuesDoNotCount) {
  ValueSummary s = summarize_values(at::full({2}, kInf));
  s.add(summarize_values(at::full({2}, 5.0)));
  s.add(summarize_values(at::full({2}, kNan)));
  EXPECT_EQ(std::get<double>(s.min), 5);
  EXPECT_EQ(double(s.mean), 5);
  EXPECT_EQ(s.std(), 0);
  EXPECT_EQ(summarize_values(at::tensor({kInf, 5.0, kNan, 5.0}, at::kDouble)).std(), 0)
      << "in one piece neither";
}

TEST(ValueSummary, APieceOfOneValueCountsAsMuchAsAnother) {
  for (const double first : {-7.0, 9.0}) {
    ValueSummary pieces = summarize_values(at::full({1}, first, at::kDouble));
    const at::Tensor rest = at::tensor({1.0, 2.0}, at::kDouble);
    pieces.add(summarize_values(rest));
    const ValueSummary whole = summarize_values(at::cat({at::full({1}, first, at::kDouble), rest}));
    EXPECT_EQ(pieces.min, whole.min) << first;
    EXPECT_EQ(pieces.max, whole.max) << first;
    EXPECT_NEAR(double(pieces.mean), double(whole.mean), 1e-12) << first;
    EXPECT_NEAR(pieces.std(), whole.std(), 1e-12) << first;
  }
}

TEST(ValueSummary, LargestDoublesDoNotOverflow) {
  const ValueSummary s = summarize_values(at::tensor({1.5e308, -1.5e308, 1.5e308, -1.5e308}, at::kDouble));
  EXPECT_EQ(double(s.mean), 0);
  EXPECT_DOUBLE_EQ(s.std(), 1.5e308);
}

TEST(ValueSummary, TheSameOnAnyNumberOfThreads) {
  const int had = at::get_num_threads();
  const at::Tensor x = at::randn({500'000});
  at::set_num_threads(1);
  const ValueSummary one = summarize_values(x);
  at::set_num_threads(4);
  const ValueSummary four = summarize_values(x);
  at::set_num_threads(had);
  EXPECT_EQ(one.mean, four.mean);
  EXPECT_EQ(one.deviations, four.deviations);
}

TEST(CastLoss, CountsOverflowAndFlushToZero) {
  const at::Tensor x = at::tensor({1e5, -1e5, 1e-9, 0.0, -0.0, kNan, kInf, 1.0, 1.0 + 0x1p-11}, at::kDouble);
  const CastLoss loss = cast_loss(x, x.to(at::kHalf));
  EXPECT_EQ(loss.values, 9);
  EXPECT_EQ(loss.overflowed, 2);
  EXPECT_EQ(loss.flushed, 1);
  EXPECT_DOUBLE_EQ(loss.max_relative_error, 0x1p-11 / (1 + 0x1p-11));
  const CastLoss wider = cast_loss(x.to(at::kHalf), x.to(at::kHalf).to(at::kFloat));
  EXPECT_EQ(wider.overflowed + wider.flushed, 0);
  EXPECT_EQ(wider.max_relative_error, 0);
}

// e4m3 has no inf: libtorch converts values that are too large to nan, and from 2.13 on to 448.
TEST(CastLoss, WhatIsPastE4m3sLargestIsAnOverflow) {
  const at::Tensor x = at::tensor({1000.f, -1e30f, 465.f, 464.f, 448.f, float(kNan), float(kInf)});
  const CastLoss loss = cast_loss(x, x.to(at::kFloat8_e4m3fn));
  EXPECT_EQ(loss.overflowed, 4);  // including the inf
  EXPECT_DOUBLE_EQ(loss.max_relative_error, 16.0 / 464);
}

TEST(CastLoss, WhatIsPastE4m3sLargestIsAnOverflowAlsoAs448) {
  const at::Tensor most = at::full({2}, 448).to(at::kFloat8_e4m3fn);
  EXPECT_EQ(cast_loss(at::tensor({465.f, 464.f}), most).overflowed, 1);
  const at::Tensor x = at::tensor({1000.f, -465.f});
  EXPECT_EQ(cast_loss(x, x.to(at::kHalf)).overflowed, 0) << "other dtypes hold it";
}

TEST(CastLoss, CountsInEveryBlock) {
  at::Tensor x = at::ones({100'000});
  for (const int64_t i : {0, 40'000, 99'999}) x[i] = 1e6;
  for (const int64_t i : {1, 50'000}) x[i] = 1e-10;
  x[70'000] = 1 + 0x1p-11;
  const CastLoss loss = cast_loss(x, x.to(at::kHalf));
  EXPECT_EQ(loss.values, 100'000);
  EXPECT_EQ(loss.overflowed, 3);
  EXPECT_EQ(loss.flushed, 2);
  EXPECT_DOUBLE_EQ(loss.max_relative_error, 0x1p-11 / (1 + 0x1p-11));
}

TEST(CastLoss, RefusesWhatItCannotCompare) {
  const auto error = [](const at::Tensor& a, const at::Tensor& b) {
    try {
      cast_loss(a, b);
    } catch (const c10::ValueError& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(at::ones({2}), at::ones({3})), HasSubstr("shapes [2] and [3] differ"));
  EXPECT_THAT(error(at::ones({2}), at::ones({2}, at::kLong)), HasSubstr("not both floating-point"));
}

}  // namespace
}  // namespace mantissa::value_summary_test
