#include "mantissa/layers/layer_norm_mlp.h"

#include <ostream>

#include <ATen/ops/linear.h>

#include "mantissa/layers/parameters_internal.h"

namespace mantissa {

LayerNormMLPImpl::LayerNormMLPImpl(LayerNormMLPOptions options)
    : options_(std::move(options)), activation_(find_activation(options_.activation)) {
  check_size("LayerNormMLP", "hidden_size", options_.hidden_size);
  check_size("LayerNormMLP", "ffn_hidden_size", options_.ffn_hidden_size);
  reset();
}

void LayerNormMLPImpl::reset() {
  const int64_t hidden = options_.hidden_size, ffn = options_.ffn_hidden_size;
  register_norm(*this, hidden, options_.normalization);
  register_linear(*this, "fc1_", hidden, activation_.is_gated ? 2 * ffn : ffn, options_.bias);
  register_linear(*this, "fc2_", ffn, hidden, options_.bias);
}

void LayerNormMLPImpl::pretty_print(std::ostream& stream) const {
  stream << "mantissa::LayerNormMLP(hidden_size=" << options_.hidden_size
         << ", ffn_hidden_size=" << options_.ffn_hidden_size << ", activation=" << options_.activation
         << ", bias=" << std::boolalpha << options_.bias << ")";
}

std::pair<at::Tensor, at::Tensor> LayerNormMLPImpl::forward_with_norm(const at::Tensor& x) {
  const OwnParameters own(*this);
  const at::Tensor normalized =
      normalize(x, own["layer_norm_weight"], own["layer_norm_bias"], options_.normalization);
  const at::Tensor hidden = at::linear(normalized, own["fc1_weight"], own["fc1_bias"]);
  return {at::linear(activation_(hidden), own["fc2_weight"], own["fc2_bias"]), normalized};
}

at::Tensor LayerNormMLPImpl::forward(const at::Tensor& x) { return forward_with_norm(x).first; }

}  // namespace mantissa
