#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

/// The kernels that registration.cpp registers for attention. They follow the rules of matmul_internal.h.
namespace mantissa::kernels::aten::attention {

/// Replaces _scaled_dot_product_flash_attention_for_cpu.
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                           const at::Tensor& value, double dropout_p, bool is_causal,
                                           const std::optional<at::Tensor>& attn_mask,
                                           std::optional<double> scale);

/// Replaces _scaled_dot_product_flash_attention_for_cpu_backward.
std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_out, const at::Tensor& query,
                                                        const at::Tensor& key, const at::Tensor& value,
                                                        const at::Tensor& out, const at::Tensor& logsumexp,
                                                        double dropout_p, bool is_causal,
                                                        const std::optional<at::Tensor>& attn_mask,
                                                        std::optional<double> scale);

}  // namespace mantissa::kernels::aten::attention
