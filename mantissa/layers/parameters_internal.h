#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>

#include "mantissa/layers/normalization.h"

// The parameters that the layers of this room share, by Transformer Engine's names and initial values.
namespace mantissa {

constexpr double kInitialStd = 0.023;  // Transformer Engine's get_default_init_method()

inline void check_size(const char* who, const char* name, int64_t size) {
  TORCH_CHECK_VALUE(size > 0, who, ": ", name, " is ", size, "; give a number above 0");
}

/// A module's own parameters by name. They are looked up in each forward pass, because a mode may have replaced them.
class OwnParameters {
 public:
  explicit OwnParameters(const torch::nn::Module& module)
      : parameters_(module.named_parameters(/*recurse=*/false)) {}
  /// Undefined if there is none of this name.
  at::Tensor operator[](const std::string& name) const {
    const at::Tensor* const found = parameters_.find(name);
    return found ? *found : at::Tensor();
  }

 private:
  torch::OrderedDict<std::string, at::Tensor> parameters_;
};

inline void register_norm(torch::nn::Module& module, int64_t features, const NormalizationOptions& options) {
  module.register_parameter("layer_norm_weight",
                            at::zeros({features}).fill_(options.zero_centered_gamma ? 0 : 1));
  if (options.kind == Normalization::kLayerNorm)
    module.register_parameter("layer_norm_bias", at::zeros({features}));
}

/// Registers `prefix`weight and, if asked, `prefix`bias.
inline void register_linear(torch::nn::Module& module, const std::string& prefix, int64_t in, int64_t out,
                            bool bias) {
  module.register_parameter(prefix + "weight",
                            torch::nn::init::normal_(at::empty({out, in}), 0, kInitialStd));
  if (bias) module.register_parameter(prefix + "bias", at::zeros({out}));
}

}  // namespace mantissa
