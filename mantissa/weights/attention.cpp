#include "mantissa/weights/attention.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace mantissa {

at::Tensor attend(const AttentionCall& call) {
  const bool shares_keys = call.query.size(1) != call.key.size(1);
  return at::scaled_dot_product_attention(
      call.query, call.key, call.value, call.mask.defined() ? std::optional(call.mask) : std::nullopt,
      call.dropout, call.is_causal, /*scale=*/std::nullopt, /*enable_gqa=*/shares_keys);
}

HasAttention::HasAttention() : identity_(at::empty({0})) {}

HasAttention::HasAttention(const HasAttention& other) : HasAttention() { *this = other; }

HasAttention& HasAttention::operator=(const HasAttention& other) {
  if (this != &other) rule_ = other.rule_ ? other.rule_->for_copy() : nullptr;
  return *this;
}

}  // namespace mantissa
