#include "mantissa/models/convnet.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>

#include "mantissa/models/linear_internal.h"

namespace mantissa {

ConvnetImpl::ConvnetImpl(const ConvnetOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.channels > 0 && options.classes > 0 && options.first > 0 && options.second > 0 &&
                        options.hidden > 0,
                    "Convnet: channels, classes and layer sizes must be positive; got channels ",
                    options.channels, ", classes ", options.classes, ", layers ", options.first, ", ",
                    options.second, ", ", options.hidden);
  TORCH_CHECK_VALUE(options.height >= 2 && options.width >= 2, "Convnet: images of ", options.height, "x",
                    options.width, " are too small to be halved; use the mlp");
  const auto conv = [](int64_t in, int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
  };
  conv1_ = register_module("conv1", conv(options.channels, options.first));
  conv2_ = register_module("conv2", conv(options.first, options.second));
  const int64_t flat = options.second * (options.height / 2) * (options.width / 2);
  hidden_ = register_module("hidden", torch::nn::Linear(flat, options.hidden));
  head_ = register_module("head", torch::nn::Linear(options.hidden, options.classes));
}

at::Tensor ConvnetImpl::forward(const at::Tensor& images) {
  TORCH_CHECK_VALUE(images.dim() == 4 && images.size(1) == options_.channels &&
                        images.size(2) == options_.height && images.size(3) == options_.width,
                    "Convnet: expects [N, ", options_.channels, ", ", options_.height, ", ", options_.width,
                    "]; got ", images.sizes(), "; make it with the channels, height and width of the images");
  at::Tensor x = at::relu(conv1_(images));
  x = at::relu(conv2_(x));
  x = at::max_pool2d(x, 2).flatten(1);
  x = at::relu(linear(hidden_, x));
  return linear(head_, x);
}

}  // namespace mantissa
