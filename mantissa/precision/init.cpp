#include "mantissa/precision/init.h"

#include <torch/nn/module.h>

namespace mantissa {

void move_module(torch::nn::Module& module, at::Device device) { module.to(device); }

}  // namespace mantissa
