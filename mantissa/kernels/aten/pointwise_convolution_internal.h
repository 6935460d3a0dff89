#pragma once

// Pointwise convolutions: 1 x 1, without stride, padding or groups. Each one is a product of the weight and a
// channels x pixels matrix, for each image, or for all images at once where they are contiguous. The operands
// need no window, and the matrix kernels handle two cases that the convolution kernels do not: few rows, and
// pairs of bf16. The kernel is chosen as for other products.

#include <optional>

#include <ATen/core/Tensor.h>

namespace mantissa::kernels::aten::pointwise_convolution {

/// Computes to[n, r] = bias[r] + the sum over c of weight[r, c] from[n, c], for each pixel.
///
/// Shapes:   from [n, c, ...], to [n, r, ...], with the same trailing dimensions; weight [r, c, 1...], or [c,
///           r, 1...] if `turned`; bias [r]. All have the same 16-bit dtype.
/// Numerics: those of Gemm.
/// Returns:  true if the result was computed. It is false if the pixels of a tensor are not evenly spaced, if
///           an image has too few pixels to repay packing the weight, or if libtorch's product was chosen.
bool multiply(const at::Tensor& weight, bool turned, const at::Tensor& from,
              const std::optional<at::Tensor>& bias, const at::Tensor& to);

/// Computes weight[r, c] = the sum over images and pixels of results[n, r] source[n, c]. Otherwise like
/// multiply().
bool multiply_pixels(const at::Tensor& results, const at::Tensor& source, const at::Tensor& weight);

/// Computes out[c] = the sum over n of sums[n, c] in float32, rounded to the dtype of `out`.
void add_images(const at::Tensor& sums, const at::Tensor& out);

}  // namespace mantissa::kernels::aten::pointwise_convolution
