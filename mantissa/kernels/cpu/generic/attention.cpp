#include <cfloat>
#include <cmath>

#include "mantissa/kernels/cpu/attention_kernel.h"
#include "mantissa/kernels/cpu/generic/element_internal.h"

namespace mantissa::kernels::cpu::generic {
namespace {

/// Reads element [row][col] of a head.
float load(const ConstHeads& heads, int64_t batch, int64_t head, int64_t row, int64_t col) {
  return load(heads.element, heads.data,
              batch * heads.batch_stride + head * heads.head_stride + row * heads.row_stride +
                  col * heads.col_stride);
}

void store(const Heads& heads, int64_t batch, int64_t head, int64_t row, int64_t col, float value) {
  store(
      heads.element, heads.data,
      batch * heads.batch_stride + head * heads.head_stride + row * heads.row_stride + col * heads.col_stride,
      value);
}

/// Computes scores[key] of one query: -inf where the query does not see the key.
void score(const Attention& g, int64_t batch, int64_t head, int64_t query, float* scores) {
  const int64_t kv_head = head / (g.heads / g.kv_heads);
  for (int64_t k = 0; k < g.keys; ++k) {
    float chain = 0;
    for (int64_t d = 0; d < g.width; ++d)
      chain += g.scale * load(g.query, batch, head, query, d) * load(g.key, batch, kv_head, k, d);
    if (g.mask.data != nullptr) chain += load(g.mask, batch, head, query, k);
    scores[k] = g.causal && k > query ? -INFINITY : chain;
  }
}

}  // namespace

int64_t attention_scratch_size(const Attention& g) { return g.keys; }

void attention(const Attention& g, const AttentionPart& part, float* scratch) {
  const auto [batch, head, query_begin, query_end] = part;
  const int64_t kv_head = head / (g.heads / g.kv_heads);
  for (int64_t query = query_begin; query < query_end; ++query) {
    score(g, batch, head, query, scratch);
    float largest = -FLT_MAX, sum = 0;
    for (int64_t k = 0; k < g.keys; ++k)
      if (scratch[k] > largest) largest = scratch[k];
    for (int64_t k = 0; k < g.keys; ++k) {
      scratch[k] = std::exp(scratch[k] - largest);
      sum += scratch[k];
    }
    const float inv_sum = sum == 0 ? 1 : 1 / sum;
    for (int64_t d = 0; d < g.width; ++d) {
      float chain = 0;
      for (int64_t k = 0; k < g.keys; ++k) chain += scratch[k] * load(g.value, batch, kv_head, k, d);
      store(g.out, batch, head, query, d, chain * inv_sum);
    }
    g.logsumexp.data[batch * g.logsumexp.batch_stride + head * g.logsumexp.head_stride +
                     query * g.logsumexp.row_stride] = sum == 0 ? 0 : largest + std::log(sum);
  }
}

int64_t attention_gradient_scratch_size(const Attention& g, int64_t keys) {
  return 2 * g.keys + g.width + 2 * keys * g.width;
}

void attention_gradient(const AttentionGradient& gradient, const AttentionGradientPart& part,
                        float* scratch) {
  const Attention& g = gradient.attention;
  const auto [batch, kv_head, head_begin, head_end, query_begin, query_end, key_begin, key_end, of_queries,
              of_keys] = part;
  const int64_t keys = of_keys ? key_end - key_begin : 0, width = g.width;
  float* const weights = scratch;
  float* const grad_scores = weights + g.keys;
  float* const grad_query = grad_scores + g.keys;
  float* const grad_keys = grad_query + width;
  float* const grad_values = grad_keys + keys * width;
  for (int64_t i = 0; i < 2 * keys * width; ++i) grad_keys[i] = 0;

  for (int64_t head = head_begin; head < head_end; ++head)
    for (int64_t query = query_begin; query < query_end; ++query) {
      const float logsumexp =
          g.logsumexp.data[batch * g.logsumexp.batch_stride + head * g.logsumexp.head_stride +
                           query * g.logsumexp.row_stride];
      float offset = 0;
      for (int64_t d = 0; d < width; ++d) {
        offset += load(gradient.grad_out, batch, head, query, d) * load(gradient.out, batch, head, query, d);
        grad_query[d] = 0;
      }
      score(g, batch, head, query, weights);
      for (int64_t k = key_begin; k < key_end; ++k) {
        weights[k] = std::exp(weights[k] - logsumexp);
        float chain = 0;
        for (int64_t d = 0; d < width; ++d)
          chain += load(gradient.grad_out, batch, head, query, d) * load(g.value, batch, kv_head, k, d);
        grad_scores[k] = weights[k] * (chain - offset);
        for (int64_t d = 0; of_queries && d < width; ++d)
          grad_query[d] += grad_scores[k] * load(g.key, batch, kv_head, k, d);
        for (int64_t d = 0; of_keys && d < width; ++d) {
          const int64_t sum = (k - key_begin) * width + d;
          grad_keys[sum] += grad_scores[k] * (g.scale * load(g.query, batch, head, query, d));
          grad_values[sum] += weights[k] * load(gradient.grad_out, batch, head, query, d);
        }
      }
      for (int64_t d = 0; of_queries && d < width; ++d)
        store(gradient.grad_query, batch, head, query, d, g.scale * grad_query[d]);
    }
  for (int64_t k = 0; k < keys; ++k)
    for (int64_t d = 0; d < width; ++d) {
      store(gradient.grad_key, batch, kv_head, key_begin + k, d, grad_keys[k * width + d]);
      store(gradient.grad_value, batch, kv_head, key_begin + k, d, grad_values[k * width + d]);
    }
}

}  // namespace mantissa::kernels::cpu::generic
