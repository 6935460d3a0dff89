#include "mantissa/kernels/cpu/attention.h"

#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "mantissa/kernels/cpu/attention_test_support_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::attention_test {

/// For GoogleTest's messages.
void PrintTo(const AttentionBuild& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

using test::AttentionProblem;
using test::AttentionResult;
using test::expect_within_bound;
using test::same_bits;

constexpr float kInf = std::numeric_limits<float>::infinity();

template <typename Heads>
Heads heads(const at::Tensor& x) {
  const auto element = x.scalar_type() == at::kFloat  ? Element::kFloat32
                       : x.scalar_type() == at::kHalf ? Element::kFloat16
                                                      : Element::kBFloat16;
  return {{static_cast<decltype(Heads::data)>(x.data_ptr()), element, x.stride(2),
           x.dim() == 4 ? x.stride(3) : 0, x.stride(0)},
          x.stride(1)};
}

AttentionResult run(const AttentionBuild& build, const AttentionProblem& p) {
  Attention g;
  g.batch = p.query.size(0);
  g.heads = p.query.size(1);
  g.kv_heads = p.key.size(1);
  g.queries = p.query.size(2);
  g.keys = p.key.size(2);
  g.width = p.query.size(3);
  g.query = heads<ConstHeads>(p.query);
  g.key = heads<ConstHeads>(p.key);
  g.value = heads<ConstHeads>(p.value);
  if (p.mask.defined()) g.mask = heads<ConstHeads>(p.mask.expand({g.batch, g.heads, g.queries, g.keys}));
  g.scale = static_cast<float>(p.factor());
  g.causal = p.causal;
  AttentionResult r{at::full_like(p.query, 7, at::MemoryFormat::Contiguous),
                    at::full({g.batch, g.heads, g.queries}, 7, at::kFloat),
                    at::full_like(p.query, 7, at::MemoryFormat::Contiguous),
                    at::full_like(p.key, 7, at::MemoryFormat::Contiguous),
                    at::full_like(p.value, 7, at::MemoryFormat::Contiguous)};
  g.out = heads<Heads>(r.out);
  g.logsumexp = heads<HeadsOf<float*>>(r.logsumexp);
  attention(g, build);
  if (p.grad_out.defined())
    attention_gradient({g, heads<ConstHeads>(r.out), heads<ConstHeads>(p.grad_out),
                        heads<Heads>(r.grad_query), heads<Heads>(r.grad_key), heads<Heads>(r.grad_value)},
                       build);
  return r;
}

struct Shape {
  int64_t batch, heads, kv_heads, queries, keys, width;
};

AttentionProblem problem(const Shape& s, at::ScalarType dtype, bool causal = false) {
  return {.query = at::randn({s.batch, s.heads, s.queries, s.width}).to(dtype),
          .key = at::randn({s.batch, s.kv_heads, s.keys, s.width}).to(dtype),
          .value = at::randn({s.batch, s.kv_heads, s.keys, s.width}).to(dtype),
          .grad_out = at::randn({s.batch, s.heads, s.queries, s.width}).to(dtype),
          .mask = {},
          .causal = causal};
}

bool same(const AttentionResult& a, const AttentionResult& b) {
  return same_bits(a.out, b.out) && same_bits(a.logsumexp, b.logsumexp) &&
         same_bits(a.grad_query, b.grad_query) && same_bits(a.grad_key, b.grad_key) &&
         same_bits(a.grad_value, b.grad_value);
}

class AttentionTest : public testing::TestWithParam<AttentionBuild> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here (or MANTISSA_MAX_ISA rules it out)";
    at::manual_seed(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  static AttentionResult run(const AttentionProblem& p) { return attention_test::run(GetParam(), p); }

  const int threads_ = at::get_num_threads();
};

TEST_P(AttentionTest, IsWithinTheBoundAtEveryEdge) {
  // The shapes have partial tiles, panels and blocks: of queries (16 or 32, in the gradient 128), keys (6 or
  // 12, 120, 384) and columns. They have few heads, which are split, many heads, and grouped heads.
  const std::vector<Shape> shapes = {{1, 1, 1, 1, 1, 1},     {1, 2, 2, 3, 1, 8},    {2, 1, 1, 1, 5, 16},
                                     {1, 1, 1, 16, 12, 6},   {1, 3, 3, 17, 13, 7},  {2, 2, 2, 33, 31, 33},
                                     {1, 2, 1, 8, 40, 20},   {1, 4, 2, 35, 50, 12}, {1, 1, 1, 70, 130, 40},
                                     {1, 1, 1, 140, 20, 17}, {1, 1, 1, 5, 400, 3},  {1, 1, 1, 260, 250, 9},
                                     {1, 1, 1, 2, 390, 65},  {1, 1, 1, 3, 7, 300},  {1, 4, 2, 6, 900, 37},
                                     {1, 1, 1, 1, 385, 16},  {1, 2, 2, 4, 3, 50}};
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const Shape& s : shapes)
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << s.batch << " x " << s.heads << "/" << s.kv_heads << " x " << s.queries
                     << " x " << s.keys << " x " << s.width << (causal ? " causal" : ""));
        const AttentionProblem p = problem(s, dtype, causal);
        expect_within_bound(p, run(p));
        if (HasFailure()) return;
      }
}

TEST_P(AttentionTest, TakesManyBlocksOfQueriesAndKeys) {
  if (GetParam().tier == CpuTier::kGeneric) GTEST_SKIP() << "plain loops have no blocks";
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool causal : {false, true})
      for (const Shape& s : {Shape{1, 1, 1, 1100, 801, 32}, Shape{1, 2, 1, 300, 410, 72}}) {
        const AttentionProblem p = problem(s, dtype, causal);
        expect_within_bound(p, run(p));
      }
}

TEST_P(AttentionTest, AddsMasksOfEveryDtypeAndForm) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto mask_dtype : {dtype, at::kFloat})
      for (const auto& sizes : std::vector<std::vector<int64_t>>{
               {2, 3, 21, 45}, {1, 1, 21, 45}, {2, 1, 1, 45}, {1, 3, 21, 1}, {21, 45}, {1, 45}, {21, 1}}) {
        AttentionProblem p = problem({2, 3, 3, 21, 45, 18}, dtype, sizes.size() == 2);
        p.mask = at::randn(sizes);
        if (sizes.back() > 1) p.mask = p.mask.masked_fill(at::rand(sizes) < 0.3, -kInf);
        p.mask = p.mask.to(mask_dtype);
        expect_within_bound(p, run(p));
        p.mask = p.mask.mT().contiguous().mT();
        expect_within_bound(p, run(p));
        // Few queries have a separate code path.
        if (sizes[sizes.size() - 2] > 1) p.mask = p.mask.narrow(-2, 4, 5);
        p.query = p.query.narrow(2, 4, 5);
        p.grad_out = p.grad_out.narrow(2, 4, 5);
        expect_within_bound(p, run(p));
      }
}

TEST_P(AttentionTest, ARowThatSeesNothingIsZeroAndHasNoGradient) {
  AttentionProblem p = problem({1, 2, 2, 20, 30, 16}, at::kHalf);
  p.mask = at::zeros({20, 30});
  p.mask[3].fill_(-kInf);
  p.mask[19].fill_(-kInf);
  const AttentionResult r = run(p);
  expect_within_bound(p, r);
  for (const int64_t row : {3, 19}) {
    EXPECT_TRUE(at::equal(r.out.select(2, row), at::zeros({1, 2, 16}, at::kHalf)));
    EXPECT_TRUE(at::equal(r.logsumexp.select(2, row), at::zeros({1, 2})));
    EXPECT_TRUE(at::equal(r.grad_query.select(2, row), at::zeros({1, 2, 16}, at::kHalf)));
  }
  // Many programs mask with the lowest finite number. If a whole row is masked so, all its keys have equal
  // weights.
  p.mask[3].fill_(std::numeric_limits<float>::lowest());
  const at::Tensor mean = p.value.to(at::kDouble).mean(2);
  EXPECT_LT((run(p).out.select(2, 3).to(at::kDouble) - mean).abs().max().item<double>(), 1e-3);
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  for (const double scale : {1.0, 300.0, -5.0})
    for (const bool causal : {false, true}) {
      AttentionProblem p = problem({1, 1, 1, 40, 500, 32}, at::kHalf, causal);
      p.scale = scale;
      expect_within_bound(p, run(p));
    }
}

TEST_P(AttentionTest, NanAndInfReachTheRowsThatSeeThem) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
    AttentionProblem p = problem({1, 2, 2, 40, 40, 8}, at::kBFloat16, /*causal=*/true);
    p.query[0][0][7][2] = bad;
    const AttentionResult clean = run(problem({1, 2, 2, 40, 40, 8}, at::kBFloat16, true));
    AttentionResult r = run(p);
    // An infinite query has infinite scores of both signs; +inf is the largest, and inf - inf is NaN.
    EXPECT_TRUE(r.out[0][0][7].isnan().all().item<bool>()) << bad;
    EXPECT_TRUE(r.grad_query[0][0][7].isnan().any().item<bool>());
    r.out[0][0][7].zero_();
    EXPECT_TRUE(r.out.isfinite().all().item<bool>());
    EXPECT_TRUE(clean.out.isfinite().all().item<bool>());

    p = problem({1, 1, 1, 40, 40, 8}, at::kBFloat16, true);
    p.key[0][0][20].fill_(bad);
    p.query.abs_();
    r = run(p);
    EXPECT_TRUE(r.out.narrow(2, 0, 20).isfinite().all().item<bool>()) << "hidden from these";
    EXPECT_EQ(r.out.narrow(2, 20, 20).isnan().all().item<bool>(), bad != -kInf);
    EXPECT_EQ(r.out.isfinite().all().item<bool>(), bad == -kInf) << "a weight of 0";

    p = problem({1, 1, 1, 40, 40, 8}, at::kBFloat16);
    p.value[0][0][20][3] = bad;
    r = run(p);
    EXPECT_FALSE(r.out.select(3, 3).isfinite().any().item<bool>());
    EXPECT_TRUE(r.out.select(3, 4).isfinite().all().item<bool>());
  }
}

/// For scores 0 and x, logsumexp is log(1 + e^x), which shows the error of the float32 exponential.
TEST_P(AttentionTest, ExponentialsAreAccurateEverywhere) {
  const at::Tensor all = at::arange(65536).to(at::kShort).view(at::kBFloat16);
  const at::Tensor x = all.masked_select(all.isfinite());
  AttentionProblem p{.query = x.view({1, 1, -1, 1}),
                     .key = at::tensor({0, 1}).to(at::kBFloat16).view({1, 1, 2, 1}),
                     .value = at::ones({1, 1, 2, 1}, at::kBFloat16),
                     .grad_out = {},
                     .mask = {}};
  const at::Tensor got = run(p).logsumexp.view({-1}).to(at::kDouble), wide = x.to(at::kDouble);
  const at::Tensor exact = wide.clamp_min(0) + (-wide.abs()).exp().log1p();
  const at::Tensor off = (got - exact).abs() / exact.clamp_min(1);
  EXPECT_LT(off.max().item<double>(), 0x1.4p-23);
}

/// A single key has the weight 1.
TEST_P(AttentionTest, Every16BitValuePassesUnchanged) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor all = at::arange(65536).to(at::kShort).view(dtype).view({64, 1, 1, 1024});
    AttentionProblem p{.query = at::randn({64, 1, 2, 1024}).to(dtype),
                       .key = at::randn({64, 1, 1, 1024}).to(dtype),
                       .value = all,
                       .grad_out = {},
                       .mask = {}};
    // -0 becomes 0, because it is added to a sum that starts at 0.
    EXPECT_TRUE(same_bits(run(p).out, (all + 0).expand({64, 1, 2, 1024}))) << dtype;
  }
}

TEST_P(AttentionTest, TakesAnyLayout) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const AttentionProblem p = problem({2, 3, 3, 37, 29, 20}, dtype, true);
    const AttentionResult wanted = run(p);
    const auto apart = [](const at::Tensor& x) {  // columns that are not adjacent
      return at::empty({x.size(0), x.size(1), x.size(2), 2, x.size(3), 3}, x.options())
          .select(3, 1)
          .select(4, 2)
          .copy_(x);
    };
    const auto swapped = [](const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); };
    const auto turned = [](const at::Tensor& x) { return x.mT().contiguous().mT(); };
    AttentionProblem q = p;
    q.query = apart(p.query), q.key = swapped(p.key), q.value = turned(p.value);
    q.grad_out = swapped(p.grad_out);
    EXPECT_TRUE(same(run(q), wanted));
    q.query = turned(p.query), q.key = apart(p.key), q.value = swapped(p.value);
    q.grad_out = apart(p.grad_out);
    EXPECT_TRUE(same(run(q), wanted));

    // One head is expanded to all heads, and one gradient to all elements.
    AttentionProblem e = p;
    e.key = p.key.narrow(1, 0, 1).expand_as(p.key);
    e.grad_out = at::ones({1}, dtype).expand_as(p.query);
    AttentionProblem c = e;
    c.key = e.key.contiguous(), c.grad_out = e.grad_out.contiguous();
    EXPECT_TRUE(same(run(e), run(c)));
  }
}

TEST_P(AttentionTest, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const Shape& s :
       {Shape{1, 1, 1, 300, 290, 64}, Shape{1, 3, 1, 150, 140, 48}, Shape{3, 3, 3, 70, 70, 80}})
    for (const bool causal : {false, true}) {
      const AttentionProblem p = problem(s, at::kBFloat16, causal);
      at::set_num_threads(1);
      const AttentionResult wanted = run(p);
      for (const int threads : {2, 3, 7}) {
        at::set_num_threads(threads);
        EXPECT_TRUE(same(run(p), wanted)) << s.heads << " heads, " << threads;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, AttentionTest, testing::ValuesIn(attention_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

}  // namespace
}  // namespace mantissa::kernels::cpu::attention_test
