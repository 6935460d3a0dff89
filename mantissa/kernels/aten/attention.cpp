#include "mantissa/kernels/cpu/attention.h"

#include <cmath>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided_cpu_dispatch.h>

#include "mantissa/kernels/aten/attention_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"

namespace mantissa::kernels::aten::attention {
namespace {

using at::Tensor;

/// Describes x [batch, heads, rows, columns] as heads.
template <typename Pointer>
HeadsOf<Pointer> heads(Pointer data, const Tensor& x) {
  return {{data, element_of(x.scalar_type()), x.stride(2), x.stride(3), x.stride(0)}, x.stride(1)};
}

/// Sets a mask of 2 or 4 dimensions, broadcast. Returns false if our kernels do not take it.
bool set_mask(Attention& g, const Tensor& mask, at::ScalarType dtype) {
  if (!is_plain(mask) || (mask.dim() != 2 && mask.dim() != 4) || mask.numel() == 0) return false;
  if (mask.scalar_type() != at::kFloat && mask.scalar_type() != dtype) return false;
  const int64_t wanted[] = {g.batch, g.heads, g.queries, g.keys};
  int64_t strides[4] = {};
  for (int64_t i = 4 - mask.dim(); i < 4; ++i) {
    const int64_t dim = i - 4 + mask.dim();
    if (mask.size(dim) != wanted[i] && mask.size(dim) != 1) return false;
    strides[i] = mask.size(dim) == 1 ? 0 : mask.stride(dim);
  }
  g.mask = {{mask.const_data_ptr(), element_of(mask.scalar_type()), strides[2], strides[3], strides[0]},
            strides[1]};
  return true;
}

/// Returns the problem without its results, if our kernels take these shapes and dtypes.
std::optional<Attention> attention_of(const Tensor& query, const Tensor& key, const Tensor& value,
                                      double dropout_p, bool is_causal,
                                      const std::optional<Tensor>& attn_mask, std::optional<double> scale) {
  // Wider heads would need more scratch memory than cpu::attention() promises.
  constexpr int64_t kMaxWidth = 1024;
  const at::ScalarType dtype = query.scalar_type();
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || dropout_p != 0) return std::nullopt;
  for (const Tensor* const x : {&query, &key, &value})
    if (x->scalar_type() != dtype || x->dim() != 4 || !is_plain(*x) || x->numel() == 0) return std::nullopt;
  if (key.sizes() != value.sizes() || query.size(0) != key.size(0) || query.size(3) != key.size(3) ||
      query.size(1) % key.size(1) != 0 || query.size(3) > kMaxWidth)
    return std::nullopt;

  Attention g;
  g.batch = query.size(0);
  g.heads = query.size(1);
  g.kv_heads = key.size(1);
  g.queries = query.size(2);
  g.keys = key.size(2);
  g.width = query.size(3);
  g.query = heads(query.const_data_ptr(), query);
  g.key = heads(key.const_data_ptr(), key);
  g.value = heads(value.const_data_ptr(), value);
  g.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(g.width))));
  g.causal = is_causal;
  const bool masked = attn_mask.has_value() && attn_mask->defined();
  if (masked && !set_mask(g, *attn_mask, dtype)) return std::nullopt;
  return g;
}

/// Returns the multiplications of the forward pass.
int64_t products_of(const Attention& g) { return 2 * g.batch * g.heads * g.queries * g.keys * g.width; }

/// Returns the build that computes `g`, or nullptr if libtorch's kernel does.
const cpu::AttentionBuild* build_for(KernelFamily family, const std::optional<Attention>& g) {
  return g ? chosen_build(cpu::attention_builds(), family, g->query.element) : nullptr;
}

HeadsOf<float*> logsumexp_of(const Tensor& x) {
  return {{const_cast<float*>(x.const_data_ptr<float>()), Element::kFloat32, x.stride(2), 0, x.stride(0)},
          x.stride(1)};
}

/// Returns an empty gradient for `x` in libtorch's layout: [batch, rows, heads, columns], transposed.
Tensor empty_gradient(const Tensor& x) {
  const int64_t heads = x.size(1), rows = x.size(2), columns = x.size(3);
  return at::cpu::empty_strided(x.sizes(), {rows * heads * columns, columns, heads * columns, 1},
                                x.options());
}

}  // namespace

std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   double dropout_p, bool is_causal, const std::optional<Tensor>& attn_mask,
                                   std::optional<double> scale) {
  auto g = attention_of(query, key, value, dropout_p, is_causal, attn_mask, scale);
  const auto* const build = build_for(g ? attention_family_of(products_of(*g)) : KernelFamily::kAttention, g);
  if (build == nullptr)
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal,
                                                                attn_mask, scale);
  Tensor out = at::empty_like(query);
  // libtorch's layout: [batch, queries, heads], transposed.
  Tensor logsumexp =
      at::cpu::empty_strided({g->batch, g->heads, g->queries}, {g->queries * g->heads, 1, g->heads},
                             query.options().dtype(at::kFloat));
  g->out = heads(out.mutable_data_ptr(), out);
  g->logsumexp = logsumexp_of(logsumexp);
  cpu::attention(*g, *build);
  return {std::move(out), std::move(logsumexp)};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                            double dropout_p, bool is_causal,
                                            const std::optional<Tensor>& attn_mask,
                                            std::optional<double> scale) {
  auto g = attention_of(query, key, value, dropout_p, is_causal, attn_mask, scale);
  const auto* const build = build_for(KernelFamily::kAttentionBackward, g);
  const auto fits = [&] {
    for (const Tensor* const x : {&grad_out, &out})
      if (!x->defined() || x->scalar_type() != query.scalar_type() || !is_plain(*x) ||
          x->sizes() != query.sizes())
        return false;
    return logsumexp.scalar_type() == at::kFloat && is_plain(logsumexp) &&
           logsumexp.sizes() == query.sizes().slice(0, 3);
  };
  if (build == nullptr || !fits())
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale);
  Tensor grad_query = empty_gradient(query), grad_key = empty_gradient(key),
         grad_value = empty_gradient(value);
  g->logsumexp = logsumexp_of(logsumexp);
  cpu::attention_gradient(
      {*g, heads(out.const_data_ptr(), out), heads(grad_out.const_data_ptr(), grad_out),
       heads(grad_query.mutable_data_ptr(), grad_query), heads(grad_key.mutable_data_ptr(), grad_key),
       heads(grad_value.mutable_data_ptr(), grad_value)},
      *build);
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value)};
}

}  // namespace mantissa::kernels::aten::attention
