#pragma once

// Pointwise convolutions, 1 x 1 without a stride, a border or groups. Each is a product of the weight and a matrix of
// channels x pixels, for each image, or for all images where they follow each other. Their operands need no window, and
// the kernels of products handle what those of convolutions do not: few rows, and pairs of bf16. The kernel is chosen as
// for other products.

#include <optional>

#include <ATen/core/Tensor.h>

namespace mantissa::kernels::aten::pointwise_convolution {

/// to[n, r] = bias[r] + the sum over c of weight[r, c] from[n, c], for each pixel.
///
/// Shapes:   from [n, c, ...], to [n, r, ...], with the same dims behind; weight [r, c, 1...], with the two
///           in each other's place if `turned`; bias [r]. All of one 16-bit dtype.
/// Numerics: those of Gemm.
/// Returns:  whether it is done. It is not where a tensor's pixels are not evenly apart, where an image has
///           so few that its product would pack a weight for nothing, or where libtorch's product was chosen.
bool multiply(const at::Tensor& weight, bool turned, const at::Tensor& from,
              const std::optional<at::Tensor>& bias, const at::Tensor& to);

/// weight[r, c] = the sum over images and pixels of results[n, r] source[n, c]. Otherwise as above.
bool multiply_pixels(const at::Tensor& results, const at::Tensor& source, const at::Tensor& weight);

/// out[c] = the sum over n of sums[n, c]: float32, rounded to the dtype of `out`.
void add_images(const at::Tensor& sums, const at::Tensor& out);

}  // namespace mantissa::kernels::aten::pointwise_convolution
