#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/embedding.h>

namespace mantissa {

/// Returns the vectors of `tokens`, which follow `before` others; `model` is the model's name in errors.
///
/// Shapes: [B, T] of int64 or int32, 1 <= T <= context - before -> [B, T, width].
/// Errors: c10::TypeError for tokens that are not integers; c10::ValueError for another shape and for sequences that
///         are too long; c10::IndexError, on the CPU, for a token outside of the vocabulary.
at::Tensor embed_tokens(const char* model, torch::nn::Embedding& embedding, const at::Tensor& tokens,
                        int64_t context, int64_t before = 0);

}  // namespace mantissa
