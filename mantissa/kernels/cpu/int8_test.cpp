#include "mantissa/kernels/cpu/int8.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::int8_test {

/// For GoogleTest's messages.
void PrintTo(const Int8Build& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

using test::same_bits;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16};

struct Rows {
  at::Tensor codes, scales, outliers;
};

Rows quantized(const at::Tensor& x, float threshold, const Int8Build& build) {
  const Rows rows{at::full(x.sizes(), 99, at::kChar), at::full({x.size(0)}, -1, at::kFloat),
                  at::zeros({x.size(1)}, at::kByte)};
  quantize_int8({x.const_data_ptr(), element_of(x.scalar_type()), x.size(0), x.size(1), x.stride(0),
                 threshold, rows.codes.mutable_data_ptr<int8_t>(), rows.scales.mutable_data_ptr<float>()},
                threshold > 0 ? rows.outliers.mutable_data_ptr<uint8_t>() : nullptr, build);
  return rows;
}

const Int8Build& generic() { return int8_builds().back(); }

class Int8 : public testing::TestWithParam<Int8Build> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here (or MANTISSA_MAX_ISA rules it out)";
    at::manual_seed(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  const int threads_ = at::get_num_threads();
};

TEST_P(Int8, RowsFollowTheDefinition) {
  for (const auto dtype : kDtypes) {
    const at::Tensor x = (at::randn({9, 77}) * 3).to(dtype), wide = x.to(at::kFloat);
    const Rows got = quantized(x, 0, GetParam());
    const at::Tensor scales = wide.abs().amax(1);
    EXPECT_TRUE(same_bits(got.scales, scales));
    // libtorch, too, rounds ties to even.
    EXPECT_TRUE(
        at::equal(got.codes, (wide * (at::full({9}, 127.0) / scales).unsqueeze(1)).round().to(at::kChar)));
  }
}

// 127 over the largest of such numbers is infinite, and 0 times that NaN.
TEST_P(Int8, ZerosBesideTinyNumbersStayZeros) {
  for (const float largest : {1e-36F, 3.7e-37F, 1e-40F}) {
    at::Tensor x = at::zeros({1, 40});
    x[0][1] = -largest;
    const Rows got = quantized(x, 0, GetParam());
    EXPECT_EQ(got.codes.count_nonzero().item<int64_t>(), largest > 1e-39F ? 1 : 0) << largest;
    EXPECT_EQ(got.scales[0].item<float>(), largest);
  }
}

TEST_P(Int8, RowsEqualGenericAtEveryTail) {
  for (const auto dtype : kDtypes)
    for (const float threshold : {0.0F, 2.0F, 6.0F})
      for (const int64_t cols : {1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 1000}) {
        at::Tensor x = at::randn({8, cols + 3}).narrow(1, 1, cols) * 3;
        x[1].zero_();
        x[2][cols / 2] = NAN;
        x[3][cols - 1] = -HUGE_VALF;
        x[4].fill_(1.5);  // ties
        x[4][0] = 127;
        x[5][0] = -6;
        x[5][cols - 1] = 100;
        x[6].mul_(1e-42);
        if (dtype != at::kFloat) x = x.to(dtype);
        const Rows got = quantized(x, threshold, GetParam()), want = quantized(x, threshold, generic());
        ASSERT_TRUE(same_bits(got.scales, want.scales)) << dtype << " " << cols << " " << threshold;
        ASSERT_TRUE(at::equal(got.outliers, want.outliers)) << dtype << " " << cols << " " << threshold;
        ASSERT_TRUE(at::equal(got.codes, want.codes)) << dtype << " " << cols << " " << threshold;
        EXPECT_EQ(want.scales[1].item<float>(), 0);
        EXPECT_TRUE(want.scales[2].isnan().item<bool>() || want.outliers.sum().item<int>() > 0);
      }
}

at::Tensor restored(const Rows& from, const at::Tensor& rows, at::ScalarType dtype, const Int8Build& build) {
  const int64_t count = rows.defined() ? rows.numel() : from.codes.size(0), cols = from.codes.size(1);
  const at::Tensor out = at::full({count * cols + 5}, 7, dtype);
  DequantizeInt8 problem;
  problem.codes = from.codes.const_data_ptr<int8_t>();
  problem.scales = from.scales.const_data_ptr<float>();
  problem.rows = rows.defined() ? rows.const_data_ptr<int64_t>() : nullptr;
  problem.count = count;
  problem.cols = cols;
  problem.values = out.mutable_data_ptr();
  problem.element = element_of(dtype);
  dequantize_int8(problem, build);
  EXPECT_TRUE((out.narrow(0, count * cols, 5) == 7).all().item<bool>())
      << "nothing is written behind the end";
  return out.narrow(0, 0, count * cols).view({count, cols});
}

TEST_P(Int8, RestoredRowsFollowTheDefinition) {
  for (const int64_t cols : {1, 7, 8, 15, 16, 17, 33, 1000}) {
    const Rows from{at::randint(-127, 128, {90, cols}, at::kChar), at::randn({90}).abs(), {}};
    const at::Tensor rows =
        at::cat({at::tensor({int64_t{89}, int64_t{0}, int64_t{89}}), at::randint(90, {60})});
    const at::Tensor exact = from.codes.to(at::kFloat) * from.scales.unsqueeze(1) / 127;
    for (const auto dtype : kDtypes)
      for (const int threads : {1, 3}) {
        at::set_num_threads(threads);
        const at::Tensor want = exact.to(dtype);
        EXPECT_TRUE(same_bits(restored(from, {}, dtype, GetParam()), want)) << dtype << " " << cols;
        EXPECT_TRUE(same_bits(restored(from, rows, dtype, GetParam()), want.index_select(0, rows)))
            << dtype << " " << cols;
      }
  }
}

struct Problem {
  at::Tensor a, b, a_scales, b_scales, addend;
};

Problem problem(int64_t m, int64_t n, int64_t k) {
  // Gaps between the rows, and the extremes, where sums of pairs in 16 bits would overflow.
  Problem p{at::randint(-128, 128, {m, k + 5}, at::kChar).narrow(1, 2, k),
            at::randint(-128, 128, {n, k + 1}, at::kChar).narrow(1, 0, k), at::rand({m}) + 0.1,
            at::rand({n}) + 0.1, at::randn({n})};
  p.a.select(0, 0).fill_(-127);
  p.b.select(0, 0).fill_(-127);
  p.b.select(0, n - 1).fill_(127);
  return p;
}

ProductInt8 product_of(const Problem& p) {
  ProductInt8 product = product_of_codes(p.a, p.b);
  product.a_scales = p.a_scales.const_data_ptr<float>();
  product.b_scales = p.b_scales.const_data_ptr<float>();
  product.scale = 1.0F / (127 * 127);
  return product;
}

at::Tensor sums_of(const Problem& p, const Int8Build& build) {
  at::Tensor sums = at::empty({p.a.size(0), p.b.size(0)}, at::kInt);
  ProductInt8 product = product_of(p);
  product.sums = sums.mutable_data_ptr<int32_t>();
  product_int8(product, build);
  return sums;
}

at::Tensor result_of(const Problem& p, at::ScalarType dtype, bool adds, const Int8Build& build) {
  at::Tensor out = at::full({p.a.size(0), p.b.size(0)}, NAN, dtype);
  ProductInt8 product = product_of(p);
  product.out = {out.mutable_data_ptr(), element_of(dtype), out.stride(0), 1};
  if (adds) product.addend = {p.addend.const_data_ptr(), Element::kFloat32, 0, 1};
  product_int8(product, build);
  return out;
}

const std::vector<std::tuple<int64_t, int64_t, int64_t>> kShapes = {
    {1, 1, 1},      {1, 1, 2},      {2, 3, 3},       {4, 17, 4},      {5, 16, 31},
    {6, 33, 32},    {13, 32, 64},   {12, 65, 63},    {3, 100, 1000},  {7, 1000, 129},
    {150, 40, 770}, {1, 530, 1540}, {700, 70, 1537}, {30, 1100, 3100}};

TEST_P(Int8, SumsAreExact) {
  for (const auto& [m, n, k] : kShapes) {
    const Problem p = problem(m, n, k);
    // Every partial sum is an integer below 2^53.
    const at::Tensor exact = p.a.to(at::kDouble).mm(p.b.to(at::kDouble).t());
    ASSERT_TRUE(at::equal(sums_of(p, GetParam()).to(at::kDouble), exact)) << m << " " << n << " " << k;
  }
}

TEST_P(Int8, TheLargestDepthDoesNotOverflow) {
  const at::Tensor a = at::full({1, kMaxInt8Depth}, -128, at::kChar), one = at::ones({1});
  for (const int64_t code : {-128, 127}) {
    const at::Tensor b = at::full({1, kMaxInt8Depth}, code, at::kChar);
    EXPECT_EQ(sums_of({a, b, one, one, one}, GetParam()).item<int64_t>(), kMaxInt8Depth * -128 * code);
    EXPECT_EQ(sums_of({b, a, one, one, one}, GetParam()).item<int64_t>(), kMaxInt8Depth * -128 * code);
  }
  EXPECT_GT((kMaxInt8Depth + 1) * 128 * 128, std::numeric_limits<int32_t>::max());
}

TEST_P(Int8, ScaledResultsEqualGenericBitForBit) {
  for (const auto& [m, n, k] : kShapes) {
    const Problem p = problem(m, n, k);
    const at::Tensor sums = sums_of(p, generic()).to(at::kFloat);
    const at::Tensor scaled = sums * (p.a_scales * (1.0F / (127 * 127))).unsqueeze(1) * p.b_scales;
    EXPECT_TRUE(same_bits(result_of(p, at::kFloat, false, GetParam()), scaled)) << m << " " << n << " " << k;
    for (const auto dtype : kDtypes)
      for (const bool adds : {false, true})
        EXPECT_TRUE(same_bits(result_of(p, dtype, adds, GetParam()), result_of(p, dtype, adds, generic())))
            << m << " " << n << " " << k << " " << dtype;
  }
}

TEST_P(Int8, ResultsDoNotDependOnThreads) {
  const Problem p = problem(130, 600, 1700);
  const at::Tensor x = at::randn({200, 1000}) * 3;
  at::set_num_threads(1);
  const at::Tensor want = sums_of(p, GetParam());
  const Rows rows = quantized(x, 6, GetParam());
  for (const int threads : {2, 3, 7}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(sums_of(p, GetParam()), want));
    const Rows again = quantized(x, 6, GetParam());
    EXPECT_TRUE(at::equal(again.codes, rows.codes));
    EXPECT_TRUE(at::equal(again.outliers, rows.outliers));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, Int8, testing::ValuesIn(int8_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

}  // namespace
}  // namespace mantissa::kernels::cpu::int8_test
