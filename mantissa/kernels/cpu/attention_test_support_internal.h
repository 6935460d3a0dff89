#pragma once

#include <cmath>
#include <gtest/gtest.h>
#include <string>

#include <torch/torch.h>

namespace mantissa::test {

/// An attention and the gradient of its result. Tensors are [batch, heads, rows, width]; the mask, if any,
/// has 2 or 4 dimensions and is broadcast.
struct AttentionProblem {
  at::Tensor query, key, value, grad_out, mask;
  bool causal = false;
  double scale = 0;  ///< 0 means libtorch's default, 1 / sqrt(width)

  /// Returns the factor on the scores.
  double factor() const { return scale == 0 ? 1 / std::sqrt(static_cast<double>(query.size(3))) : scale; }
};

struct AttentionResult {
  at::Tensor out, logsumexp, grad_query, grad_key, grad_value;
};

/// Expects every element of `got` to be within `error`, the bound of the float32 computation, plus one
/// rounding of `exact`. `exact` and `error` are float64.
inline void expect_rounded(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& error,
                           const std::string& name) {
  ASSERT_EQ(got.sizes(), exact.sizes()) << name;
  const bool is_bf16 = got.scalar_type() == at::kBFloat16, is_fp16 = got.scalar_type() == at::kHalf;
  const double half_ulp = is_bf16 ? 0x1p-8 : is_fp16 ? 0x1p-11 : 0x1p-24;
  const double half_smallest = is_fp16 ? 0x1p-25 : 0x1p-134;
  const at::Tensor allowed = error + (exact.abs() + error) * half_ulp + half_smallest;
  const at::Tensor off = (got.to(at::kDouble) - exact).abs();
  const at::Tensor wrong = ~(off <= allowed);  // not `>`, because a NaN must count
  EXPECT_FALSE(wrong.any().item<bool>())
      << name << ": " << wrong.sum().item<int64_t>() << " of " << wrong.numel()
      << ", the worst by a factor of " << (off / allowed).masked_fill(~wrong, 0).max().item<double>();
}

/// Compares `got` with float64 results. The allowed errors are those that kernels::Attention and
/// kernels::AttentionGradient state; products of two rounding errors are neglected. Without a `grad_out`,
/// gradients are not checked.
inline void expect_within_bound(const AttentionProblem& p, const AttentionResult& got) {
  const double eps = 0x1p-24, scale = p.factor();
  const int64_t group = p.query.size(1) / p.key.size(1), queries = p.query.size(2), keys = p.key.size(2),
                width = p.query.size(3);
  const at::Tensor q = p.query.to(at::kDouble), k = p.key.to(at::kDouble).repeat_interleave(group, 1),
                   v = p.value.to(at::kDouble).repeat_interleave(group, 1);
  at::Tensor scores = scale * q.matmul(k.mT());
  at::Tensor d = (static_cast<double>(width) + 8) * eps * std::abs(scale) * q.abs().matmul(k.abs().mT());
  if (p.mask.defined()) {
    scores = scores + p.mask.to(at::kDouble);
    d = d + 4 * eps * p.mask.to(at::kDouble).abs();
  }
  d = d + 4 * eps * scores.abs();
  at::Tensor hidden = scores == -INFINITY;
  if (p.causal) hidden = hidden | at::ones({queries, keys}, at::kBool).triu(1);
  scores = scores.masked_fill(hidden, -INFINITY);
  d = d.masked_fill(hidden, 0).amax(-1, true);
  const at::Tensor nothing = hidden.all(-1, true);
  const at::Tensor weights = at::softmax(scores, -1).masked_fill(nothing, 0);
  const at::Tensor logsumexp = at::logsumexp(scores, {-1}, true).masked_fill(nothing, 0);
  const at::Tensor out = weights.matmul(v);
  const at::Tensor relative = 2 * d + (static_cast<double>(keys) + 16) * eps;
  const at::Tensor out_error = relative * weights.matmul(v.abs());
  expect_rounded(got.out, out, out_error, "out");
  expect_rounded(got.logsumexp, logsumexp.squeeze(-1), (relative + 4 * eps * logsumexp.abs()).squeeze(-1),
                 "logsumexp");

  if (!p.grad_out.defined()) return;
  const double half_ulp = p.query.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-8;
  const auto sum_of = [eps](int64_t terms) { return (static_cast<double>(terms) + 8) * eps; };
  const at::Tensor g = p.grad_out.to(at::kDouble);
  const at::Tensor weight_error = 2 * relative + 16 * eps + 4 * eps * logsumexp.abs();
  const at::Tensor grad_weights = g.matmul(v.mT()), offset = (g * out).sum(-1, true);
  const at::Tensor grad_scores = weights * (grad_weights - offset);
  const at::Tensor out_rounding = out_error + half_ulp * (out.abs() + out_error) +
                                  (p.query.scalar_type() == at::kHalf ? 0x1p-25 : 0x1p-134);
  const at::Tensor offset_error =
      (g.abs() * out_rounding).sum(-1, true) + sum_of(width) * (g * out).abs().sum(-1, true);
  const at::Tensor score_error = weights * ((weight_error + 2 * eps) * (grad_weights - offset).abs() +
                                            sum_of(width) * g.abs().matmul(v.abs().mT()) + offset_error);
  const auto of_group = [&](const at::Tensor& x) {
    return x.view({x.size(0), p.key.size(1), group, keys, width}).sum(2);
  };
  expect_rounded(got.grad_query, scale * grad_scores.matmul(k),
                 std::abs(scale) * (score_error + sum_of(keys) * grad_scores.abs()).matmul(k.abs()),
                 "grad_query");
  expect_rounded(got.grad_key, of_group(scale * grad_scores.mT().matmul(q)),
                 of_group(std::abs(scale) *
                          (score_error + sum_of(queries * group) * grad_scores.abs()).mT().matmul(q.abs())),
                 "grad_key");
  expect_rounded(got.grad_value, of_group(weights.mT().matmul(g)),
                 of_group(((weight_error + sum_of(queries * group)) * weights).mT().matmul(g.abs())),
                 "grad_value");
}

}  // namespace mantissa::test
