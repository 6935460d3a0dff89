#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Linear;
}

namespace mantissa {

/// Applies `layer` to `input` by at::linear, as Python's F.linear does.
///
/// Numerics: for three-dimensional input, libtorch's own Linear multiplies first and then adds the bias;
///           at::linear flattens the input and lets the product start from the bias. The results differ in
///           the last bit.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& input);

}  // namespace mantissa
