#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A loss and the number of positions whose largest logit is the target.
struct ChunkedScores {
  at::Tensor loss;     ///< a number: the mean in nats
  at::Tensor correct;  ///< a number of int64
};

/// Returns cross_entropy(output_layer(hidden_states), target), the mean over all positions, and never has all logits in memory. With a
/// vocabulary of 50,257, the logits of 8,192 positions and their gradient would take 3.3 GB in float32. The backward pass computes
/// each chunk's logits again.
///
/// `output_layer`: maps [n, width] to logits [n, vocabulary]. What it refers to must live until the backward pass.
/// `chunk`:  the most positions whose logits exist at a time.
/// Shapes:   hidden_states [samples, ..., width], target [samples, ...] of int64 -> a number. Positions with the target -100 do
///           not count, as in torch.
/// Numerics: logits of 16 bits are cast to float32. Loss and gradients equal those of all logits at once up to rounding: sums
///           run chunk by chunk. Without any position that counts, the loss is NaN, as torch's is.
/// Regions:  those of recompute(), which computes each chunk.
/// Gradients: each chunk adds to the gradient of the output layer's weight by itself, so hooks of that weight run once per chunk.
/// Errors:   c10::ValueError for a chunk below 1, no function, and shapes that do not fit; c10::IndexError for a target outside of
///           the vocabulary, on the CPU.
/// Source:   Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009, section 3, without its kernels.
/// Example:  chunked_cross_entropy_test.cpp, ChunkedCrossEntropy.EqualsThatOfAllLogits
at::Tensor chunked_cross_entropy(const std::function<at::Tensor(const at::Tensor&)>& output_layer,
                                 const at::Tensor& hidden_states, const at::Tensor& target, int64_t chunk);

/// The same, for a validation: also counts the positions that the largest logit predicts. Has no gradient.
ChunkedScores chunked_scores(const std::function<at::Tensor(const at::Tensor&)>& output_layer,
                             const at::Tensor& hidden_states, const at::Tensor& target, int64_t chunk);

}  // namespace mantissa
