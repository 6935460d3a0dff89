#include "mantissa/kernels/cpu/quantized4.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::quantized4_test {

/// For GoogleTest's messages.
void PrintTo(const Quantized4Build& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

using test::same_bits;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16};
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Codes {
  at::Tensor codes, absmax;
};

Codes quantized(const at::Tensor& x, int64_t block, Code4 code, const Quantized4Build& build) {
  // Bytes behind the end stay 255.
  const Codes result{at::full({(x.numel() + 1) / 2 + 3}, 255, at::kByte),
                     at::full({(x.numel() + block - 1) / block}, -1, at::kFloat)};
  quantize4({x.const_data_ptr(), element_of(x.scalar_type()), x.numel(), block, code,
             result.codes.mutable_data_ptr<uint8_t>(), result.absmax.mutable_data_ptr<float>()},
            build);
  return result;
}

at::Tensor dequantized(const Codes& codes, int64_t count, int64_t block, Code4 code, at::ScalarType dtype,
                       const Quantized4Build& build) {
  const at::Tensor out = at::full({count + 5}, 7, dtype);
  dequantize4({codes.codes.const_data_ptr<uint8_t>(), codes.absmax.const_data_ptr<float>(), count, block,
               code, out.mutable_data_ptr(), element_of(dtype)},
              build);
  EXPECT_TRUE((out.narrow(0, count, 5) == 7).all().item<bool>()) << "nothing is written behind the end";
  return out.narrow(0, 0, count);
}

const Quantized4Build& generic() { return quantized4_builds().back(); }

class Quantized4 : public testing::TestWithParam<Quantized4Build> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here (or MANTISSA_MAX_ISA rules it out)";
    at::manual_seed(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  const int threads_ = at::get_num_threads();
};

/// Blocks of every kind: normal numbers, zeros, NaN, inf, numbers whose reciprocal overflows, thresholds.
at::Tensor difficult(int64_t count, at::ScalarType dtype) {
  at::Tensor x = at::randn({count});
  const auto put = [&](int64_t at, const at::Tensor& values) {
    const int64_t here = std::min(values.numel(), count - at);
    if (here > 0) x.narrow(0, at, here).copy_(values.narrow(0, 0, here));
  };
  put(64, at::zeros({64}));
  put(130, at::full({1}, NAN));
  put(200, at::full({1}, -kInf));
  put(256, at::randn({64}) * 1e-40);
  at::Tensor thresholds = at::cat({at::tensor(at::ArrayRef<float>(kNF4Thresholds)),
                                   at::tensor(at::ArrayRef<float>(kFP4Thresholds)), at::ones({1})});
  put(320, thresholds);
  put(384, -thresholds);
  return x.to(dtype);
}

TEST_P(Quantized4, Q02_Q03_Q05_Q12_EqualsGenericAtEveryTail) {
  for (const auto dtype : kDtypes)
    for (const Code4 code : {Code4::kNF4, Code4::kFP4})
      for (const int64_t block : {32, 64, 128, 4096})
        for (const int64_t count : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 95, 129, 449, 5001}) {
          const at::Tensor x = difficult(count, dtype);
          const Codes got = quantized(x, block, code, GetParam()),
                      want = quantized(x, block, code, generic());
          ASSERT_TRUE(at::equal(got.codes, want.codes)) << dtype << " " << block << " " << count;
          ASSERT_TRUE(same_bits(got.absmax, want.absmax)) << dtype << " " << block << " " << count;
          for (const auto to : kDtypes)
            ASSERT_TRUE(same_bits(dequantized(got, count, block, code, to, GetParam()),
                                  dequantized(got, count, block, code, to, generic())))
                << dtype << " " << block << " " << count << " " << to;
        }
}

/// The reference against the definitions of core/code_tables.h, computed here one by one.
TEST_P(Quantized4, Q06_Q08_FollowsTheDefinition) {
  const at::Tensor x = difficult(449, at::kFloat);
  const int64_t block = 64;
  for (const Code4 code : {Code4::kNF4, Code4::kFP4}) {
    const Codes got = quantized(x, block, code, GetParam());
    const auto* const codes = got.codes.const_data_ptr<uint8_t>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const at::Tensor of_block = x.slice(0, i / block * block, (i / block + 1) * block);
      const float absmax = of_block.abs().max().item<float>();  // libtorch's max keeps NaN
      const float stored = got.absmax[i / block].item<float>();
      ASSERT_TRUE(stored == absmax || (std::isnan(stored) && std::isnan(absmax))) << i;
      if (absmax == 0 || absmax < std::numeric_limits<float>::min()) continue;
      const float scaled = x[i].item<float>() * (1 / absmax);
      const int expected = code == Code4::kNF4 ? nf4_code(scaled) : fp4_code(scaled);
      ASSERT_EQ(i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15, expected) << i;
    }
  }
  // The first of two values is the high half of their byte.
  const at::Tensor two = at::zeros({64});
  two[0] = 1;
  two[1] = -1;
  EXPECT_EQ(quantized(two, 64, Code4::kNF4, GetParam()).codes[0].item<int>(), 0xf0);
  EXPECT_EQ(quantized(two, 64, Code4::kFP4, GetParam()).codes[0].item<int>(), 0x3b);
}

TEST_P(Quantized4, Q05_Q09_ZerosStayZerosAndAnOddCountEndsWithTheCodeOfZero) {
  for (const Code4 code : {Code4::kNF4, Code4::kFP4}) {
    const Codes zeros = quantized(at::zeros({65}), 64, code, GetParam());
    const int zero = code == Code4::kNF4 ? 0x77 : 0;
    for (int64_t byte = 0; byte < 33; ++byte) EXPECT_EQ(zeros.codes[byte].item<int>(), zero);
    EXPECT_TRUE(same_bits(dequantized(zeros, 65, 64, code, at::kFloat, GetParam()), at::zeros({65})));
    const Codes odd = quantized(at::ones({3}), 64, code, GetParam());
    EXPECT_EQ(odd.codes[1].item<int>(), code == Code4::kNF4 ? 0xf7 : 0x30);
    EXPECT_EQ(odd.codes[2].item<int>(), 255);
  }
}

TEST_P(Quantized4, Q07_EachValueOfATableQuantizesToItself) {
  for (const float absmax : {1.0F, 0.3F, 117.0F, 1e-40F})
    for (const Code4 code : {Code4::kNF4, Code4::kFP4}) {
      const at::Tensor values =
          at::tensor(at::ArrayRef<float>(code == Code4::kNF4 ? kNF4Values : kFP4Values)) * absmax;
      const at::Tensor x = at::cat({values, values.flip(0)});
      const Codes got = quantized(x, 32, code, GetParam());
      EXPECT_TRUE(at::equal(dequantized(got, 32, 32, code, at::kFloat, GetParam()), x)) << absmax;
    }
}

TEST_P(Quantized4, Q10_TheErrorIsHalfTheWidestGapAtMost) {
  const at::Tensor x = at::rand({1 << 16}) * 2 - 1;
  for (const Code4 code : {Code4::kNF4, Code4::kFP4}) {
    const Codes got = quantized(x, 64, code, GetParam());
    const at::Tensor error = (dequantized(got, x.numel(), 64, code, at::kFloat, GetParam()) - x).abs();
    const double half_gap = (1 - (code == Code4::kNF4 ? 0.69619280 : 2.0 / 3)) / 2;
    EXPECT_TRUE((error <= got.absmax.repeat_interleave(64) * half_gap + 1e-6).all().item<bool>());
  }
}

/// A table of rows in codes, whose scales are `absmax` of the codes or, if there is an offset, `nested`.
struct Table {
  int64_t rows, cols, block;
  Code4 code;
  Codes codes;
  at::Tensor nested_codes, map, nested_absmax, offset;
};

Table table_of(int64_t rows, int64_t cols, int64_t block, Code4 code, bool is_nested) {
  Table t{rows, cols, block, code, quantized(at::randn({rows * cols}), block, code, generic()),
          {},   {},   {},    {}};
  if (!is_nested) return t;
  const int64_t blocks = t.codes.absmax.numel();
  t.nested_codes = at::randint(256, {blocks}, at::kByte);
  t.map = at::tensor(at::ArrayRef<float>(kDynamicSigned));
  t.nested_absmax = at::rand({(blocks + kNestedBlock4 - 1) / kNestedBlock4}) + 0.1;
  t.offset = at::randn({});
  t.codes.absmax = t.map.index_select(0, t.nested_codes.to(at::kLong)) *
                       t.nested_absmax.repeat_interleave(kNestedBlock4).narrow(0, 0, blocks) +
                   t.offset;
  return t;
}

at::Tensor rows_of(const Table& t, const at::Tensor& rows, at::ScalarType dtype,
                   const Quantized4Build& build) {
  const int64_t count = rows.numel() * t.cols;
  const at::Tensor out = at::full({count + 5}, 7, dtype);
  DequantizeRows4 problem;
  problem.weight = {t.codes.codes.const_data_ptr<uint8_t>(), nullptr, t.rows, t.cols, t.block, t.code};
  if (t.offset.defined()) {
    problem.nested = {t.nested_codes.const_data_ptr<uint8_t>(), t.map.const_data_ptr<float>(),
                      t.nested_absmax.const_data_ptr<float>(), t.offset.const_data_ptr<float>()};
  } else {
    problem.weight.absmax = t.codes.absmax.const_data_ptr<float>();
  }
  problem.rows = rows.const_data_ptr<int64_t>();
  problem.count = rows.numel();
  problem.values = out.mutable_data_ptr();
  problem.element = element_of(dtype);
  dequantize_rows4(problem, build);
  EXPECT_TRUE((out.narrow(0, count, 5) == 7).all().item<bool>()) << "nothing is written behind the end";
  return out.narrow(0, 0, count).view({rows.numel(), t.cols});
}

TEST_P(Quantized4, Q14_RowsHaveTheBitsOfTheWholeWeight) {
  constexpr int64_t kRows = 130;  // with 96 values, the blocks of 32 have two scales of scales
  for (const Code4 code : {Code4::kNF4, Code4::kFP4})
    for (const int64_t block : {32, 64, 4096})
      for (const int64_t cols : {1, 3, 16, 31, 64, 65, 96, 200})
        for (const bool is_nested : {false, true}) {
          const Table t = table_of(kRows, cols, block, code, is_nested);
          const at::Tensor rows =
              at::cat({at::tensor({kRows - 1, int64_t{0}, kRows - 1}), at::randint(kRows, {40})});
          for (const auto dtype : kDtypes) {
            const at::Tensor whole =
                dequantized(t.codes, kRows * cols, block, code, dtype, generic()).view({kRows, cols});
            ASSERT_TRUE(same_bits(rows_of(t, rows, dtype, GetParam()), whole.index_select(0, rows)))
                << dtype << " block " << block << " cols " << cols << (is_nested ? " nested" : "");
          }
          rows_of(t, rows.narrow(0, 0, 0), at::kFloat, GetParam());
        }
}

TEST_P(Quantized4, RowsDoNotDependOnThreads) {
  const Table t = table_of(300, 1024, 64, Code4::kNF4, true);
  const at::Tensor rows = at::randint(300, {500});
  at::set_num_threads(1);
  const at::Tensor want = rows_of(t, rows, at::kFloat, GetParam());
  for (const int threads : {2, 3, 7}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(same_bits(rows_of(t, rows, at::kFloat, GetParam()), want)) << threads << " threads";
  }
}

struct Case {
  int64_t m, rows, cols, block;
  bool transposed;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  // Widths that are whole blocks, whole words, whole vectors, even, odd; blocks that cross the ends of rows.
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> weights = {
      {16, 32, 32},   {33, 64, 64},    {40, 96, 64},   {5, 30, 64}, {31, 17, 32},
      {70, 160, 32},  {29, 832, 64},   {100, 400, 64}, {1, 1, 32},  {3, 1152, 128},
      {65, 200, 128}, {9, 4096, 4096}, {591, 48, 64}};
  // 157 rows: three groups of 40, and one of 32 and five.
  for (const auto& [rows, cols, block] : weights)
    for (const int64_t m : {1, 3, 4, 13, 157})
      for (const bool transposed : {true, false}) all.push_back({m, rows, cols, block, transposed});
  return all;
}

Product4 problem(const Case& c, const Codes& codes, Code4 code, const at::Tensor& a, const at::Tensor& out) {
  Product4 p;
  p.m = c.m;
  p.a = {a.const_data_ptr(), element_of(a.scalar_type()), a.stride(0), a.stride(1)};
  p.weight = {codes.codes.const_data_ptr<uint8_t>(),
              codes.absmax.const_data_ptr<float>(),
              c.rows,
              c.cols,
              c.block,
              code};
  p.transposed = c.transposed;
  p.out = {out.mutable_data_ptr(), element_of(out.scalar_type()), out.stride(0), out.stride(1)};
  return p;
}

/// Whether the build rounds the weight in this product.
bool rounds(const Case& c) { return !(c.transposed && c.m <= kFewRows4 && c.cols % c.block == 0); }

struct Operands {
  Codes codes;
  at::Tensor a, weight, addend, out;  // `weight`: as an operand [k, n], rounded as the product rounds it
};

Operands operands(const Case& c, Code4 code, at::ScalarType dtype) {
  Operands o;
  o.codes = quantized(at::randn({c.rows, c.cols}), c.block, code, generic());
  const at::Tensor weight =
      dequantized(o.codes, c.rows * c.cols, c.block, code, rounds(c) ? dtype : at::kFloat, generic())
          .view({c.rows, c.cols});
  o.weight = (c.transposed ? weight.t() : weight).to(at::kDouble);
  o.a = at::randn({c.m, o.weight.size(0)}).to(dtype);
  o.addend = at::randn({o.weight.size(1)}).to(dtype);
  o.out = at::full({c.m, o.weight.size(1)}, NAN, dtype);
  return o;
}

TEST_P(Quantized4, ProductsAreWithinTheBoundAtEveryEdge) {
  for (const Code4 code : {Code4::kNF4, Code4::kFP4})
    for (const auto dtype : kDtypes)
      for (const Case& c : cases()) {
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << c.m << " rows, weight " << c.rows << " x " << c.cols
                     << (c.transposed ? " transposed" : "") << " block " << c.block);
        const Operands o = operands(c, code, dtype);
        Product4 p = problem(c, o.codes, code, o.a, o.out);
        const at::Tensor a = o.a.to(at::kDouble), exact = a.mm(o.weight),
                         magnitude = a.abs().mm(o.weight.abs());
        product4(p, GetParam());
        test::expect_within_bound(o.out, exact, magnitude, a.size(1));
        p.addend = {o.addend.const_data_ptr(), element_of(dtype), 0, 1};
        product4(p, GetParam());
        const at::Tensor addend = o.addend.to(at::kDouble);
        test::expect_within_bound(o.out, exact + addend, magnitude + addend.abs(), a.size(1));
        if (HasFailure()) return;
      }
}

/// Products of 16-bit operands are exact, so that only the order of the sums matters, which Gemm defines.
TEST_P(Quantized4, ProductsOf16BitsEqualGenericBitForBit) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    if (GetParam().tier == CpuTier::kAmxBf16) continue;                               // sums terms of pairs
    if (dtype == at::kBFloat16 && GetParam().tier == CpuTier::kAvx512Bf16) continue;  // sums pairs
    for (const Case& c : cases()) {
      if (!rounds(c)) continue;
      const Operands o = operands(c, Code4::kNF4, dtype);
      const at::Tensor want = at::empty_like(o.out);
      product4(problem(c, o.codes, Code4::kNF4, o.a, o.out), GetParam());
      product4(problem(c, o.codes, Code4::kNF4, o.a, want), generic());
      ASSERT_TRUE(same_bits(o.out, want)) << dtype << " " << c.m << " " << c.rows << " x " << c.cols;
    }
  }
}

TEST_P(Quantized4, ResultsDependNeitherOnThreadsNorOnTheOtherRows) {
  for (const bool transposed : {true, false})
    for (const int64_t m : {1, 3, 40, 200, 650}) {
      const int64_t width = m < 100 ? 1024 : 320;
      const Case c{m, width, width, 64, transposed};
      const Operands o = operands(c, Code4::kNF4, at::kFloat);
      at::set_num_threads(1);
      product4(problem(c, o.codes, Code4::kNF4, o.a, o.out), GetParam());
      for (const int threads : {2, 3, 7}) {
        at::set_num_threads(threads);
        const at::Tensor again = at::empty_like(o.out);
        product4(problem(c, o.codes, Code4::kNF4, o.a, again), GetParam());
        EXPECT_TRUE(same_bits(o.out, again)) << m << " rows, " << threads << " threads";
        EXPECT_TRUE(
            at::equal(quantized(o.weight.to(at::kFloat).contiguous(), 64, Code4::kFP4, GetParam()).codes,
                      quantized(o.weight.to(at::kFloat).contiguous(), 64, Code4::kFP4, generic()).codes));
      }
      const Case first{1, width, width, 64, transposed};
      const at::Tensor alone = at::empty({1, width});
      product4(problem(first, o.codes, Code4::kNF4, o.a.narrow(0, 0, 1), alone), GetParam());
      if (m <= kFewRows4) {
        EXPECT_TRUE(same_bits(alone, o.out.narrow(0, 0, 1)));
      }
      if (m >= 200) {
        const at::Tensor some = at::empty({160, width});
        product4(
            problem({160, width, width, 64, transposed}, o.codes, Code4::kNF4, o.a.narrow(0, 0, 160), some),
            GetParam());
        EXPECT_TRUE(same_bits(some, o.out.narrow(0, 0, 160))) << m;
      }
    }
}

TEST_P(Quantized4, OperandsMayHaveAnyStridesAndOtherTypesThanTheResult) {
  for (const auto dtype : kDtypes)
    for (const int64_t m : {2, 9, 113, 118, 120}) {
      const Case c{m, 70, 128, 64, true};
      const Operands o = operands(c, Code4::kFP4, dtype);
      const at::Tensor around = at::full({m + 1, 2 * 70}, 7, at::kFloat);
      const at::Tensor out = around.narrow(0, 0, m).slice(1, 0, 140, 2);
      const at::Tensor spread = at::empty({128, m, 2}, dtype).select(2, 1).t().copy_(o.a);
      product4(problem(c, o.codes, Code4::kFP4, spread, out), GetParam());
      const at::Tensor a = o.a.to(at::kDouble);
      test::expect_within_bound(out.contiguous(), a.mm(o.weight), a.abs().mm(o.weight.abs()), 128);
      EXPECT_EQ((around == 7).sum().item<int64_t>(), around.numel() - m * 70);
    }
}

/// AMX computes float32 and fp16 by way of bf16, which has no such sums for these rows. It leaves rows 32 to 39, 72 to 79 and
/// so on to AVX-512.
TEST_P(Quantized4, RowsOfAnySizeAreWithinTheBoundAndLeaveTheOthersAlone) {
  constexpr int64_t kRows = 130;
  for (const auto dtype : {at::kFloat, at::kHalf})
    for (const bool transposed : {true, false}) {
      const Case c{kRows, 320, 320, 64, transposed};
      const Operands o = operands(c, Code4::kNF4, dtype);
      product4(problem(c, o.codes, Code4::kNF4, o.a, o.out), GetParam());
      const at::Tensor plain = o.out.clone();
      const double tiny = dtype == at::kFloat ? 1e-36 : 1e-6, huge = dtype == at::kFloat ? 3e36 : 100;
      const std::vector<std::pair<int64_t, double>> scales = {{0, 0},     {1, 1e-6},  {20, tiny}, {21, huge},
                                                              {33, tiny}, {34, huge}, {45, tiny}};
      for (const auto& [row, scale] : scales) o.a[row].mul_(scale);
      o.a[2][5] = NAN;
      o.a[40][300] = kInf;
      o.a[75][300] = kInf;
      o.a[129][0] = -kInf;
      if (dtype == at::kFloat) o.a[50][7] = 0x1.FFFFFEp127F;  // rounds to inf in bf16
      product4(problem(c, o.codes, Code4::kNF4, o.a, o.out), GetParam());
      const at::Tensor a = o.a.to(at::kDouble);
      test::expect_within_bound(o.out, a.mm(o.weight), a.abs().mm(o.weight.abs()), 320);
      for (int64_t row = 0; row < kRows; ++row) {
        if (!at::equal(o.a[row], o.a[row]) || !o.a[row].isfinite().all().item<bool>()) continue;
        if (row == 50 ||
            std::any_of(scales.begin(), scales.end(), [row](const auto& s) { return s.first == row; }))
          continue;
        EXPECT_TRUE(same_bits(o.out[row], plain[row])) << dtype << " row " << row;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, Quantized4, testing::ValuesIn(quantized4_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

}  // namespace
}  // namespace mantissa::kernels::cpu::quantized4_test
