#include "mantissa/layers/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

at::Tensor gelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }
at::Tensor quick_gelu(const at::Tensor& x) { return x * at::sigmoid(1.702 * x); }
at::Tensor relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor squared_relu(const at::Tensor& x) { return at::relu(x).square(); }
at::Tensor silu(const at::Tensor& x) { return at::silu(x); }
at::Tensor sigmoid(const at::Tensor& x) { return at::sigmoid(x); }

}  // namespace

at::Tensor Activation::operator()(const at::Tensor& x) const {
  if (!is_gated) return f(x);
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return f(halves[0]) * halves[1];
}

const std::vector<Activation>& activations() {
  static const std::vector<Activation> table{
      {"gelu", false, gelu},          {"geglu", true, gelu},          {"qgelu", false, quick_gelu},
      {"qgeglu", true, quick_gelu},   {"relu", false, relu},          {"reglu", true, relu},
      {"srelu", false, squared_relu}, {"sreglu", true, squared_relu}, {"silu", false, silu},
      {"swiglu", true, silu},         {"glu", true, sigmoid},
  };
  return table;
}

const Activation& find_activation(const std::string& name) {
  std::vector<std::string> names;
  for (const Activation& activation : activations()) {
    if (activation.name == name) return activation;
    names.emplace_back(activation.name);
  }
  TORCH_CHECK_VALUE(false, "activation '", name, "' is unknown", did_you_mean(name, names), "; choose from ",
                    join_names(names));
}

}  // namespace mantissa
