#include "mantissa/kernels/cpu/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/cpu/builds_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::gemm_test {

/// For GoogleTest's messages.
void PrintTo(const GemmBuild& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

template <typename M>
M matrix(const at::Tensor& x) {
  return {x.data_ptr(), element_of(x.scalar_type()), x.stride(-2), x.stride(-1),
          x.dim() == 3 ? x.stride(0) : 0};
}

struct Extras {
  float alpha = 1, beta = 1;
  at::Tensor addend;  // broadcast to the result
  Activation activation = Activation::kNone;
};

Gemm problem(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const Extras& extras = {}) {
  Gemm g;
  g.m = a.size(-2);
  g.n = b.size(-1);
  g.k = a.size(-1);
  g.batch = a.dim() == 3 ? a.size(0) : 1;
  g.a = matrix<ConstMatrix>(a);
  g.b = matrix<ConstMatrix>(b);
  g.out = matrix<Matrix>(out);
  if (extras.addend.defined()) g.addend = matrix<ConstMatrix>(extras.addend.expand_as(out));
  g.alpha = extras.alpha;
  g.beta = extras.beta;
  g.activation = extras.activation;
  return g;
}

/// Returns `x` in layout 0 (adjacent rows), 1 (adjacent columns), 2 (neither), or 3 (adjacent rows with
/// gaps).
at::Tensor laid_out(const at::Tensor& x, int layout) {
  const int64_t rows = x.size(0), cols = x.size(1);
  at::Tensor to;
  switch (layout) {
    case 0:
      to = at::empty({rows, cols}, x.options());
      break;
    case 1:
      to = at::empty({cols, rows}, x.options()).t();
      break;
    case 2:
      to = at::empty({rows, 2, cols, 3}, x.options()).select(1, 1).select(2, 2);
      break;
    default:
      to = at::empty({rows, cols + 5}, x.options()).narrow(1, 2, cols);
  }
  return to.copy_(x);
}

class GemmTest : public testing::TestWithParam<GemmBuild> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here (or MANTISSA_MAX_ISA rules it out)";
    at::manual_seed(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  static at::Tensor run(const GemmBuild& build, const at::Tensor& a, const at::Tensor& b,
                        at::ScalarType out_dtype, const Extras& extras = {}) {
    at::Tensor out = a.dim() == 3 ? at::empty({a.size(0), a.size(1), b.size(2)}, out_dtype)
                                  : at::empty({a.size(0), b.size(1)}, out_dtype);
    gemm(problem(a, b, out, extras), build);
    return out;
  }
  static at::Tensor run(const at::Tensor& a, const at::Tensor& b, at::ScalarType out,
                        const Extras& extras = {}) {
    return run(GetParam(), a, b, out, extras);
  }
  static at::Tensor generic(const at::Tensor& a, const at::Tensor& b, at::ScalarType out,
                            const Extras& extras = {}) {
    return run(gemm_builds().back(), a, b, out, extras);
  }

  const int threads_ = at::get_num_threads();
};

/// True if the build multiplies this dtype in pairs along k: see Gemm.
bool in_pairs(const GemmBuild& build, at::ScalarType dtype) {
  return build.tier == CpuTier::kAvx512Bf16 && dtype == at::kBFloat16;
}

/// Returns x with 0 in place of values below float32's normal range.
at::Tensor without_denormals(const at::Tensor& x) {
  return x.masked_fill(x.to(at::kDouble).abs() < std::numeric_limits<float>::min(), 0);
}

/// Returns x with adjacent elements along the dimension k swapped.
at::Tensor with_pairs_turned(const at::Tensor& x, int64_t k) {
  std::vector<int64_t> order(static_cast<size_t>(x.size(k)));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = 0; i + 1 < order.size(); i += 2) std::swap(order[i], order[i + 1]);
  return x.index_select(k, at::tensor(order));
}

const std::vector<std::tuple<int64_t, int64_t, int64_t>> kShapes = {
    {1, 1, 1},      {1, 1, 1000}, {2, 3, 5},     {4, 4, 4},     {5, 17, 7},   {6, 16, 384},
    {7, 15, 385},   {12, 32, 8},  {13, 33, 9},   {1, 40, 400},  {40, 1, 400}, {3, 513, 390},
    {520, 2, 769},  {4, 7, 20},   {145, 31, 16}, {150, 530, 3}, {64, 64, 1},  {31, 514, 770},
    {580, 48, 386}, {1, 513, 16}, {1, 530, 15},  {9, 1, 1153},  {1, 7, 1000}, {100, 6, 50},
    {700, 40, 2},   {9, 600, 3},  {64, 33, 1},   {70, 10, 60},  {10, 70, 60}};

TEST_P(GemmTest, IsWithinTheBoundAtEveryEdge) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [m, n, k] : kShapes) {
      const at::Tensor a = at::randn({m, k}).to(dtype), b = at::randn({k, n}).to(dtype);
      const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
      const at::Tensor exact = x.mm(y), magnitude = x.abs().mm(y.abs());
      for (int layout = 0; layout < 16; ++layout) {
        SCOPED_TRACE(testing::Message()
                     << m << " x " << n << " x " << k << " " << dtype << " layout " << layout);
        test::expect_within_bound(run(laid_out(a, layout / 4), laid_out(b, layout % 4), dtype), exact,
                                  magnitude, k);
        if (HasFailure()) return;
      }
    }
}

/// The order of summation is part of the specification. The one exception is up to three rows or columns
/// against a matrix that is adjacent along k.
TEST_P(GemmTest, EqualsGenericBitForBit) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [m, n, k] : kShapes) {
      if (std::min(m, n) <= 3) continue;
      const at::Tensor a = at::randn({m, k}).to(dtype), b = at::randn({k, n}).to(dtype);
      const bool turned = in_pairs(GetParam(), dtype);
      if (turned && k > kGemmKC) continue;  // its blocks are longer
      const at::Tensor c = turned ? with_pairs_turned(a, 1) : a, d = turned ? with_pairs_turned(b, 0) : b;
      const at::Tensor wanted = generic(c, d, dtype), wanted32 = generic(c, d, at::kFloat);
      for (int layout = 0; layout < 16; ++layout) {
        const at::Tensor x = laid_out(a, layout / 4), y = laid_out(b, layout % 4);
        EXPECT_TRUE(test::same_bits(run(x, y, dtype), wanted)) << m << " " << n << " " << k << " " << layout;
        EXPECT_TRUE(test::same_bits(run(x, y, at::kFloat), wanted32))
            << m << " " << n << " " << k << " " << layout;
      }
    }
}

TEST_P(GemmTest, ResultsGoToAnyLayout) {
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{13, 35}, {1, 40}, {40, 1}, {2, 2}}) {
    const at::Tensor a = at::randn({m, 20}).to(at::kHalf), b = at::randn({20, n}).to(at::kHalf);
    const at::Tensor wanted = run(a, b, at::kHalf);
    for (const int layout : {0, 1, 2, 3}) {
      const at::Tensor around = at::full({m + 2, n + 7}, 7, at::kHalf);
      at::Tensor out = laid_out(at::zeros({m, n}, at::kHalf), layout);
      if (layout == 3) out = around.narrow(0, 1, m).narrow(1, 3, n);
      gemm(problem(a, b, out), GetParam());
      EXPECT_TRUE(test::same_bits(out, wanted)) << m << " x " << n << " layout " << layout;
      // The memory around the result stays unchanged.
      if (layout == 3) {
        EXPECT_EQ((around == 7).sum().item<int64_t>() - (out == 7).sum().item<int64_t>(),
                  around.numel() - out.numel());
      }
    }
  }
}

/// libtorch has no negative strides, but the kernel accepts them.
TEST_P(GemmTest, StridesMayBeNegativeOrZero) {
  const at::Tensor a = at::randn({20, 50}).to(at::kBFloat16), b = at::randn({50, 37}).to(at::kBFloat16);
  at::Tensor out = at::empty({20, 37}, at::kBFloat16);
  Gemm g = problem(a, b, out);
  g.a.data = static_cast<const at::BFloat16*>(g.a.data) + 19 * 50 + 49;
  g.a.row_stride = -50;
  g.a.col_stride = -1;
  gemm(g, GetParam());
  EXPECT_TRUE(test::same_bits(out, run(a.flip({0, 1}), b, at::kBFloat16)));

  const at::Tensor row = at::randn({1, 50}).to(at::kBFloat16), column = at::randn({50, 1}).to(at::kBFloat16);
  EXPECT_TRUE(test::same_bits(run(row.expand({20, 50}), b, at::kBFloat16),
                              run(row.expand({20, 50}).contiguous(), b, at::kBFloat16)));
  EXPECT_TRUE(test::same_bits(run(a, column.expand({50, 37}), at::kBFloat16),
                              run(a, column.expand({50, 37}).contiguous(), at::kBFloat16)));
}

TEST_P(GemmTest, FactorsAddendsAndActivationsComeBeforeTheOneRounding) {
  for (const auto& [m, k] : {std::pair<int64_t, int64_t>{1, 400}, {14, 400}, {14, 2}}) {
    const int64_t n = 35;
    const at::Tensor a = (at::randn({m, k}) / 20).to(at::kBFloat16), b = at::randn({k, n}).to(at::kBFloat16);
    const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
    for (const auto addend_dtype : {at::kBFloat16, at::kFloat, at::kHalf})
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{m, n}, {m, 1}, {1, n}, {1, 1}})
        for (const auto activation :
             {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh}) {
          const Extras extras{.alpha = 0.75F,
                              .beta = -1.3F,
                              .addend = at::randn(sizes).to(addend_dtype),
                              .activation = activation};
          const at::Tensor addend = extras.addend.to(at::kDouble) * static_cast<double>(extras.beta);
          at::Tensor exact = 0.75 * x.mm(y) + addend;
          const at::Tensor magnitude = 0.75 * x.abs().mm(y.abs()) + addend.abs();
          if (activation == Activation::kRelu) exact = exact.relu();
          if (activation == Activation::kGelu) exact = at::gelu(exact);
          if (activation == Activation::kGeluTanh) exact = at::gelu(exact, "tanh");
          test::expect_within_bound(run(a, b, at::kBFloat16, extras), exact, magnitude, k);
          if (m > 3 && (activation == Activation::kNone || activation == Activation::kRelu) &&
              !in_pairs(GetParam(), at::kBFloat16)) {
            EXPECT_TRUE(test::same_bits(run(a, b, at::kHalf, extras), generic(a, b, at::kHalf, extras)));
          }
        }
  }
}

TEST_P(GemmTest, AnAddendMayBeTheResultItself) {
  for (const int64_t n : {1, 9, 700}) {
    const at::Tensor a = at::randn({30, 500}).to(at::kHalf), b = at::randn({500, n}).to(at::kHalf);
    const at::Tensor before = at::randn({30, n}).to(at::kHalf);
    const at::Tensor wanted = run(a, b, at::kHalf, {.beta = 0.5, .addend = before});
    at::Tensor out = before.clone();
    gemm(problem(a, b, out, {.beta = 0.5, .addend = out}), GetParam());
    EXPECT_TRUE(test::same_bits(out, wanted));
  }
}

/// Mixed layers rely on this: rounding while packing equals a cast.
TEST_P(GemmTest, AFloat32OperandIsRoundedToTheOthersDtype) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const int64_t m : {2, 14}) {
      const at::Tensor a = at::randn({m, 401}).to(dtype), weight = at::randn({45, 401});
      for (const auto out : {dtype, at::kFloat}) {
        EXPECT_TRUE(test::same_bits(run(a, weight.t(), out), run(a, weight.to(dtype).t(), out)));
        EXPECT_TRUE(test::same_bits(run(weight, a.t(), out), run(weight.to(dtype), a.t(), out)));
      }
    }
  // Two float32 operands are not rounded, and operands of the two 16-bit types are multiplied as they are.
  const at::Tensor a = at::randn({14, 50}), b = at::randn({50, 20});
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  test::expect_within_bound(run(a, b, at::kFloat), x.mm(y), x.abs().mm(y.abs()), 50);
  const at::Tensor c = a.to(at::kHalf), d = b.to(at::kBFloat16);
  EXPECT_TRUE(test::same_bits(run(c, d, at::kFloat), run(c.to(at::kFloat), d.to(at::kFloat), at::kFloat)));
}

TEST_P(GemmTest, Every16BitValuePassesUnchanged) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = at::arange(65536).to(at::kShort).view(dtype).view({-1, 1});
    const at::Tensor got = run(a, at::ones({1, 8}, dtype), dtype);
    // -0 becomes 0, because it is added to a sum that starts at 0.
    const at::Tensor wanted = in_pairs(GetParam(), dtype) ? without_denormals(a) : a;
    EXPECT_TRUE(test::same_bits(got, (wanted + 0).expand({-1, 8}))) << dtype;
    // One step, with whole vectors and a remainder, which are not rounded in the product's micro-tiles.
    EXPECT_TRUE(test::same_bits(run(a, at::ones({1, 40}, dtype), dtype), (a + 0).expand({-1, 40}))) << dtype;
  }
}

TEST_P(GemmTest, RoundsToNearestEvenAsLibtorchDoes) {
  // All exponents, with mantissas at, next to and between the halves of both types.
  const at::Tensor high = at::arange(0, 1 << 16).view({-1, 1}) * (1 << 16);
  const at::Tensor low =
      at::tensor({0, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff});
  const at::Tensor values = (high + low).to(at::kInt).view({-1, 11}).view(at::kFloat);
  const at::Tensor one = at::eye(11);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    // The zeros beside infinite and NaN values would spread NaN over their row.
    const at::Tensor finite = values.masked_fill(~values.isfinite(), 0);
    EXPECT_TRUE(test::same_bits(run(finite, one, dtype), (finite + 0).to(dtype))) << dtype;
    // Also as the rounding of an operand: a float32 value beside a 16-bit one.
    const at::Tensor inside = finite.masked_fill(finite.to(dtype).isinf(), 0);
    const at::Tensor kept = in_pairs(GetParam(), dtype) ? without_denormals(inside) : inside;
    EXPECT_TRUE(test::same_bits(run(inside, one.to(dtype), at::kFloat), kept.to(dtype).to(at::kFloat) + 0))
        << dtype;
  }
}

TEST_P(GemmTest, SumsThatCancelStayWithinTheBound) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const int64_t m : {1, 10}) {
      const int64_t k = 3000, n = 40;
      const double large = dtype == at::kHalf ? 30000 : 1e30;
      // Large terms with alternating signs, and small terms between them.
      at::Tensor a = at::rand({m, k}).to(dtype);
      a.slice(1, 0, at::nullopt, 4).fill_(large);
      a.slice(1, 2, at::nullopt, 4).fill_(-large);
      for (const at::Tensor& b :
           {at::ones({k, n}, dtype), at::rand({k, n}).to(dtype), at::randn({k, n}).to(dtype)}) {
        const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
        test::expect_within_bound(run(a, b, dtype), x.mm(y), x.abs().mm(y.abs()), k);
        test::expect_within_bound(run(a, b.t().contiguous().t(), dtype), x.mm(y), x.abs().mm(y.abs()), k);
      }
    }
}

/// In bf16 this sum would stop at 256.
TEST_P(GemmTest, SumsInFloat32) {
  const at::Tensor a = at::ones({5, 5000}, at::kBFloat16), b = at::ones({5000, 9}, at::kBFloat16);
  EXPECT_TRUE(at::equal(run(a, b, at::kFloat), at::full({5, 9}, 5000.0)));
  EXPECT_TRUE(at::equal(run(a.narrow(0, 0, 1), b, at::kFloat), at::full({1, 9}, 5000.0)));
}

TEST_P(GemmTest, NanAndInfReachTheirRowAndColumnAlone) {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const float bad : {kNan, kInf, -kInf})
      for (const int64_t m : {3, 13}) {
        at::Tensor a = at::randn({m, 390}).to(dtype), b = at::randn({390, 33}).to(dtype);
        a[1][385] = bad;
        b[2][32] = bad;
        const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
        for (const at::Tensor& layout : {b, b.t().contiguous().t()})
          test::expect_within_bound(run(a, layout, dtype), x.mm(y), x.abs().mm(y.abs()).nan_to_num(0, 0, 0),
                                    390);
      }
  // A result beyond fp16 is infinite, even though its float32 sum is finite.
  const at::Tensor big = at::full({5, 5}, 6e4).to(at::kHalf);
  EXPECT_TRUE(at::equal(run(big, big, at::kHalf), at::full({5, 5}, kInf).to(at::kHalf)));
}

TEST_P(GemmTest, KeepsDenormalsButInPairs) {
  const at::Tensor one = at::eye(8);
  const at::Tensor fp16 = (at::arange(64).view({8, 8}) * 0x1p-24).to(at::kHalf);
  EXPECT_TRUE(at::equal(run(fp16, one.to(at::kHalf), at::kHalf), fp16));
  EXPECT_TRUE(at::equal(run(fp16, one.to(at::kHalf), at::kFloat), fp16.to(at::kFloat)));
  const at::Tensor bf16 = at::arange(64).to(at::kShort).view({8, 8}).view(at::kBFloat16);
  ASSERT_GT(bf16.to(at::kDouble).max().item<double>(), 0);
  EXPECT_TRUE(test::same_bits(run(bf16, one.to(at::kBFloat16), at::kBFloat16),
                              in_pairs(GetParam(), at::kBFloat16) ? at::zeros_like(bf16) : bf16));
}

TEST_P(GemmTest, MultipliesBatches) {
  for (const int64_t batch : {1, 2, 3, 17})
    for (const int64_t m : {1, 7, 70}) {
      const at::Tensor a = at::randn({batch, m, 40}).to(at::kHalf);
      const at::Tensor b = at::randn({batch, 33, 40}).to(at::kHalf).transpose(1, 2);
      const at::Tensor shared = b.select(0, 0).expand_as(b);
      for (const at::Tensor& y : {b, shared}) {
        std::vector<at::Tensor> each;
        for (int64_t i = 0; i < batch; ++i) each.push_back(run(a[i], y[i], at::kHalf));
        EXPECT_TRUE(test::same_bits(run(a, y, at::kHalf), at::stack(each))) << batch << " " << m;
      }
    }
}

TEST_P(GemmTest, AddsTermsInOrder) {
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> shapes = {
      {7, 20, 50}, {1, 40, 400}, {1, 9, 70}, {40, 2, 385}, {13, 33, 384}, {20, 50, 2}, {150, 530, 390}};
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [m, n, k] : shapes)
      for (const bool along_k : {false, true}) {
        SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << " " << dtype << " " << along_k);
        const int64_t terms = 3, batch = 2;
        const at::Tensor a = at::randn({terms, batch, m, k}).to(dtype);
        at::Tensor b = at::randn({terms, batch, k, n}).to(dtype);
        if (along_k) b = b.transpose(2, 3).contiguous().transpose(2, 3);
        const auto sum = [&](const GemmBuild& build) {
          at::Tensor out = at::empty({batch, m, n}, dtype);
          Gemm g = problem(a[0], b[0], out);
          g.terms = terms;
          g.a.term_stride = a.stride(0);
          g.b.term_stride = b.stride(0);
          gemm(g, build);
          return out;
        };
        const at::Tensor got = sum(GetParam());
        const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
        test::expect_within_bound(got, x.matmul(y).sum(0), x.abs().matmul(y.abs()).sum(0), terms * k);
        if (std::min(m, n) <= 3 || in_pairs(GetParam(), dtype)) continue;
        EXPECT_TRUE(test::same_bits(got, sum(gemm_builds().back())));
        // Terms of whole blocks are the same as the blocks of one sum.
        if (k != kGemmKC) continue;
        const auto joined = [&](const at::Tensor& t, int64_t dim) {
          return at::cat(t.unbind(0), dim).contiguous();
        };
        EXPECT_TRUE(test::same_bits(got, run(joined(a, 2), joined(b, 1), dtype)));
      }
}

TEST_P(GemmTest, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const auto& [m, n, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {257, 255, 400}, {1, 3000, 1000}, {3000, 2, 1000}, {30, 1500, 800}, {1000, 20, 500}}) {
    const at::Tensor a = at::randn({m, k}).to(at::kBFloat16);
    for (const at::Tensor& b :
         {at::randn({k, n}).to(at::kBFloat16), at::randn({n, k}).to(at::kBFloat16).t()}) {
      at::set_num_threads(1);
      const at::Tensor wanted = run(a, b, at::kBFloat16);
      for (const int threads : {2, 3, 7}) {
        at::set_num_threads(threads);
        EXPECT_TRUE(test::same_bits(run(a, b, at::kBFloat16), wanted)) << m << " x " << n << ", " << threads;
      }
    }
  }
}

TEST_P(GemmTest, ThreadsOfTheProgramMultiplyAtTheSameTime) {
  const at::Tensor a = at::randn({70, 400}).to(at::kHalf), b = at::randn({400, 90}).to(at::kHalf);
  const at::Tensor wanted = run(a, b, at::kHalf);
  std::vector<at::Tensor> got(4);
  std::vector<std::thread> threads;
  for (at::Tensor& mine : got)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) mine = run(a, b, at::kHalf);
    });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& each : got) EXPECT_TRUE(test::same_bits(each, wanted));
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, GemmTest, testing::ValuesIn(gemm_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

TEST(GemmBuilds, TheBestThatMayRunIsTaken) {
  const auto best = std::find_if(gemm_builds().begin(), gemm_builds().end(), [](const GemmBuild& build) {
    return cpu_features().includes(features_of(build.tier));
  });
  ASSERT_NE(best, gemm_builds().end());
  EXPECT_EQ(&build_for(gemm_builds(), cpu_features()), &*best);
  EXPECT_EQ(gemm_builds().back().tier, CpuTier::kGeneric);
  EXPECT_EQ(&build_for(gemm_builds(), {}), &gemm_builds().back());
  EXPECT_EQ(&build_for(gemm_builds(), {CpuFeature::kAvx512F, CpuFeature::kAmxTile}), &gemm_builds().back());
}

}  // namespace
}  // namespace mantissa::kernels::cpu::gemm_test
