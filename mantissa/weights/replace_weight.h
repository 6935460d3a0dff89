#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Gives the parameter `name` of `module` ("weight", or "layers.0.weight" of a submodule) the values of
/// `weight`, a packed weight or a plain tensor. The tensor that the module holds is changed itself, so a typed
/// member such as `weight` of torch::nn::Linear, the list of parameters, other modules that share the weight
/// and optimizers see the new values. The parameter keeps no gradient, and a packed one requires none; after a
/// plain tensor, call set_requires_grad(true) to train it again.
///
/// Shapes:  `weight` has the parameter's shape. Its dtype and device may differ, and become the parameter's.
/// Memory:  the former values are freed, if nothing else holds them.
/// Threads: not while another thread uses the module; not between its forward and backward pass.
/// Errors:  c10::ValueError for an unknown name (with the nearest one), another shape, an undefined tensor, and
///          a parameter that autograd computed. Nothing has changed then.
/// Example: replace_weight_test.cpp, ReplaceWeight.MemberAndParametersAgree
void replace_weight(torch::nn::Module& module, const std::string& name, const at::Tensor& weight);

/// The same for a parameter that is at hand, such as `weight` of a torch::nn::Linear.
void replace_weight(const at::Tensor& parameter, const at::Tensor& weight);

}  // namespace mantissa
