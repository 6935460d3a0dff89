// Attention through libtorch's own functions: which calls reach the kernels of attention.h, and which do not.
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/cpu/attention_test_support_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::attention_test {
namespace {

using test::AttentionProblem;
using test::AttentionResult;
using test::same_bits;
using Results = std::vector<at::Tensor>;

class ScaledDotProduct : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  }
  void TearDown() override { disable_cpu_kernels(); }

  static Results stock(const std::function<Results()>& compute) {
    disable_cpu_kernels();
    Results results = compute();
    enable_cpu_kernels();
    return results;
  }
};

std::optional<at::Tensor> mask_of(const AttentionProblem& p) {
  return p.mask.defined() ? std::optional(p.mask) : std::nullopt;
}
std::optional<double> scale_of(const AttentionProblem& p) {
  return p.scale == 0 ? std::nullopt : std::optional(p.scale);
}

/// Computes out, logsumexp and the three gradients with the operators below autograd.
Results operators(const AttentionProblem& p) {
  const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      p.query, p.key, p.value, 0, p.causal, mask_of(p), scale_of(p));
  const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      p.grad_out, p.query, p.key, p.value, out, logsumexp, 0, p.causal, mask_of(p), scale_of(p));
  return {out, logsumexp, query, key, value};
}

at::Tensor variable(const at::Tensor& x) { return x.detach().set_requires_grad(true); }

/// Computes the same with the functions that a program calls; logsumexp is the operator's.
AttentionResult by_autograd(const AttentionProblem& p) {
  const at::Tensor query = variable(p.query), key = variable(p.key), value = variable(p.value);
  const at::Tensor out = at::scaled_dot_product_attention(query, key, value, mask_of(p), 0, p.causal,
                                                          scale_of(p), p.query.size(1) != p.key.size(1));
  const auto gradients = torch::autograd::grad({out}, {query, key, value}, {p.grad_out});
  const at::Tensor logsumexp = std::get<1>(at::_scaled_dot_product_flash_attention_for_cpu(
      p.query, p.key, p.value, 0, p.causal, mask_of(p), scale_of(p)));
  return {out.detach(), logsumexp, gradients[0], gradients[1], gradients[2]};
}

AttentionProblem problem(at::ScalarType dtype, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                         int64_t width) {
  return {.query = at::randn({2, heads, queries, width}).to(dtype),
          .key = at::randn({2, kv_heads, keys, width}).to(dtype),
          .value = at::randn({2, kv_heads, keys, width}).to(dtype),
          .grad_out = at::randn({2, heads, queries, width}).to(dtype),
          .mask = {}};
}

/// Query, key and value of one projection, as in models.
AttentionProblem self_attention(at::ScalarType dtype, int64_t heads, int64_t tokens, int64_t width) {
  const auto parts = at::randn({2, tokens, 3 * heads * width}).to(dtype).chunk(3, -1);
  const auto split = [&](const at::Tensor& x) { return x.view({2, tokens, heads, width}).transpose(1, 2); };
  return {.query = split(parts[0]),
          .key = split(parts[1]),
          .value = split(parts[2]),
          .grad_out = at::randn({2, tokens, heads, width}).to(dtype).transpose(1, 2),
          .mask = {},
          .causal = true};
}

/// libtorch's own result differs, because it rounds the weights. If it were ours as well, a test would
/// compare our result with itself.
void expect_ours(const AttentionProblem& p) {
  disable_cpu_kernels();
  const at::Tensor theirs = operators(p)[4];
  enable_cpu_kernels();
  EXPECT_FALSE(same_bits(operators(p)[4], theirs));
}

TEST_F(ScaledDotProduct, ResultsAndGradientsAreNearTheExactOnes) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    std::vector<AttentionProblem> problems = {
        self_attention(dtype, 4, 67, 32), problem(dtype, 3, 3, 20, 50, 24), problem(dtype, 6, 2, 33, 45, 16)};
    problems.push_back(problems[1]);
    problems.back().scale = 0.7;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{20, 50}, {2, 1, 1, 50}, {1, 3, 20, 1}})
      for (const auto mask_dtype : {dtype, at::kFloat}) {
        problems.push_back(problems[1]);
        problems.back().mask = at::randn(sizes).to(mask_dtype);
      }
    for (const AttentionProblem& p : problems) {
      test::expect_within_bound(p, by_autograd(p));
      expect_ours(p);
    }
  }
}

TEST_F(ScaledDotProduct, BooleanMasksHideKeys) {
  const AttentionProblem p = problem(at::kBFloat16, 2, 2, 9, 13, 16);
  const at::Tensor seen = at::rand({2, 1, 9, 13}) < 0.6;
  seen[0][0][4].fill_(false);  // a row that sees no key
  const at::Tensor query = variable(p.query);
  const at::Tensor out = at::scaled_dot_product_attention(query, p.key, p.value, seen);
  const at::Tensor exact = at::scaled_dot_product_attention(p.query.to(at::kDouble), p.key.to(at::kDouble),
                                                            p.value.to(at::kDouble), seen);
  EXPECT_LT((out.detach().to(at::kDouble) - exact).abs().max().item<double>(), 0x1p-7);
  EXPECT_TRUE(at::equal(out.detach()[0].select(1, 4), at::zeros({2, 16}, at::kBFloat16)));
  out.sum().backward();
  EXPECT_TRUE(at::equal(query.grad()[0].select(1, 4), at::zeros({2, 16}, at::kBFloat16)));
}

TEST_F(ScaledDotProduct, LayoutsAreLibtorchs) {
  for (const AttentionProblem& p : {self_attention(at::kHalf, 4, 21, 16), problem(at::kHalf, 4, 2, 7, 9, 8),
                                    problem(at::kBFloat16, 1, 1, 1, 1, 1)}) {
    const Results ours = operators(p), theirs = stock([&] { return operators(p); });
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].sizes(), theirs[i].sizes()) << i;
      EXPECT_EQ(ours[i].strides(), theirs[i].strides()) << i;
      EXPECT_EQ(ours[i].scalar_type(), theirs[i].scalar_type()) << i;
    }
  }
}

TEST_F(ScaledDotProduct, GradientsAreThoseThatAreAskedFor) {
  const AttentionProblem p = self_attention(at::kBFloat16, 2, 30, 16);
  const AttentionResult all = by_autograd(p);
  const std::vector<at::Tensor> inputs = {p.query, p.key, p.value},
                                wanted = {all.grad_query, all.grad_key, all.grad_value};
  for (int subset = 1; subset < 8; ++subset) {
    std::vector<at::Tensor> x;
    for (int i = 0; i < 3; ++i) x.push_back(inputs[i].detach().set_requires_grad((subset >> i & 1) != 0));
    at::scaled_dot_product_attention(x[0], x[1], x[2], std::nullopt, 0, true).backward(p.grad_out);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(x[i].grad().defined(), x[i].requires_grad());
      if (x[i].grad().defined()) {
        EXPECT_TRUE(same_bits(x[i].grad(), wanted[i])) << subset << " " << i;
      }
    }
  }
}

TEST_F(ScaledDotProduct, DisablingAndOtherDtypesAreLibtorchsBits) {
  const AttentionProblem low = problem(at::kHalf, 3, 3, 20, 50, 24);
  expect_ours(low);
  // The first case has rows wider than the scratch memory allows.
  std::vector<AttentionProblem> problems = {problem(at::kBFloat16, 1, 1, 3, 5, 1030)};
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    problems.push_back(
        {low.query.to(dtype), low.key.to(dtype), low.value.to(dtype), low.grad_out.to(dtype), {}});
    problems.push_back(problems.back());
    problems.back().mask = at::randn({20, 50}).to(dtype);
  }
  for (const AttentionProblem& p : problems) {
    const Results ours = operators(p), theirs = stock([&] { return operators(p); });
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(same_bits(ours[i], theirs[i])) << i;
  }
}

TEST_F(ScaledDotProduct, ErrorsAreLibtorchs) {
  const AttentionProblem p = problem(at::kHalf, 2, 2, 5, 6, 8);
  const auto forward = [](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          double dropout, const std::optional<at::Tensor>& mask) -> Results {
    return {std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, false, mask))};
  };
  const std::vector<std::function<Results()>> cases = {
      [&] { return forward(p.query, p.key, p.value, 0.5, std::nullopt); },
      [&] { return forward(p.query[0], p.key[0], p.value[0], 0, std::nullopt); },
      [&] { return forward(p.query, p.key.narrow(3, 0, 7), p.value, 0, std::nullopt); },
      [&] {
        return forward(p.query, p.key, p.value, 0, at::ones({5, 6}, at::kInt));
      },
      [&] {
        return forward(p.query, p.key, p.value, 0, at::ones({5, 6}, at::kBFloat16));
      },
      [&] {
        return forward(p.query, p.key, p.value, 0, at::ones({2, 5, 6}, at::kHalf));
      }};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string ours = error_of(cases[i]);
    disable_cpu_kernels();
    EXPECT_EQ(ours, error_of(cases[i])) << i;
    EXPECT_NE(ours, "no error") << i;
    enable_cpu_kernels();
  }
}

/// Dropout and masks with gradients take libtorch's composite path, in float32.
TEST_F(ScaledDotProduct, WhatIsNotOneOperationStillTrains) {
  const AttentionProblem p = self_attention(at::kHalf, 2, 30, 16);
  const at::Tensor query = variable(p.query), mask = variable(at::zeros({30, 30}, at::kHalf));
  const at::Tensor dropped = at::scaled_dot_product_attention(query, p.key, p.value, std::nullopt, 0.5, true);
  const at::Tensor masked = at::scaled_dot_product_attention(query, p.key, p.value, mask);
  (dropped.sum() + masked.sum()).backward();
  EXPECT_TRUE(query.grad().isfinite().all().item<bool>());
  EXPECT_GT(mask.grad().abs().max().item<double>(), 0);
}

TEST_F(ScaledDotProduct, InferenceModeAndUndefinedGradients) {
  const AttentionProblem p = self_attention(at::kHalf, 2, 30, 16);
  const at::Tensor wanted = operators(p)[0];
  const auto nothing = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      at::Tensor(), p.query, p.key, p.value, wanted, at::zeros({2, 2, 30}), 0, true);
  EXPECT_FALSE(std::get<0>(nothing).defined());
  const c10::InferenceMode inference;
  const at::Tensor got = at::scaled_dot_product_attention(p.query, p.key, p.value, std::nullopt, 0, true);
  EXPECT_TRUE(got.is_inference());
  EXPECT_TRUE(same_bits(got, wanted));
}

}  // namespace
}  // namespace mantissa::attention_test
