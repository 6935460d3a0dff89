#include <ATen/ops/linear.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/linear_internal.h"

namespace mantissa {

at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& input) {
  return at::linear(input, layer->weight, layer->bias);
}

}  // namespace mantissa
