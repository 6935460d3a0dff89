#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// The norm of every gradient and of all of them, to log: "grad_2.0_norm/NAME" and "grad_2.0_norm_total", the
/// order written as Python writes a float. Empty if no parameter has a gradient. `named_parameters`: for a
/// module, `module.named_parameters().pairs()`. Call it where gradients are unscaled and not yet clipped:
/// Task::on_before_optimizer_step().
///
/// Shapes:  0-dim, on the gradients' devices; the total on the first one's.
/// Sync:    none.
/// Errors:  c10::ValueError for an order that is not above 0.
/// Source:  Lightning's grad_norm(), spec NF-4.
std::map<std::string, at::Tensor> grad_norm(
    const std::vector<std::pair<std::string, at::Tensor>>& named_parameters, double norm_type = 2.0);

}  // namespace mantissa
