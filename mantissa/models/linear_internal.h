#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Linear;
}

namespace mantissa {

/// `layer` applied to `input` by at::linear, as Python's F.linear does.
///
/// Numerics: libtorch's own Linear multiplies first and adds the bias after, for input of three dimensions;
///           at::linear flattens it and lets the product start from the bias. The two differ in the last bit.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& input);

}  // namespace mantissa
