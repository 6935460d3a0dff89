#include "mantissa/models/mlp.h"

#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "mantissa/models/linear_internal.h"

namespace mantissa {

MlpImpl::MlpImpl(const MlpOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.in_features > 0 && options.classes > 0,
                    "Mlp: need in_features > 0 and classes > 0; got ", options.in_features, " and ",
                    options.classes);
  register_module("layers", layers_);
  int64_t width = options.in_features;
  for (const int64_t hidden : options.hidden) {
    TORCH_CHECK_VALUE(hidden > 0, "Mlp: a hidden layer of width ", hidden,
                      " is invalid; every width must be positive");
    layers_->push_back(torch::nn::Linear(width, hidden));
    width = hidden;
  }
  layers_->push_back(torch::nn::Linear(width, options.classes));
}

at::Tensor MlpImpl::forward(const at::Tensor& images) {
  TORCH_CHECK_VALUE(
      images.dim() >= 2 && c10::multiply_integers(images.sizes().slice(1)) == options_.in_features,
      "Mlp: expects [N, ...] with ", options_.in_features, " values per sample; got ", images.sizes(),
      "; make it with in_features to match");
  at::Tensor x = images.flatten(1);
  for (size_t i = 0; i < layers_->size(); ++i) {
    x = linear(layers_->ptr<torch::nn::LinearImpl>(i), x);
    if (i + 1 < layers_->size()) x = at::relu(x);
  }
  return x;
}

}  // namespace mantissa
