#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Returns norms for logging: that of each gradient as "grad_2.0_norm/NAME", and that of all gradients together
/// as "grad_2.0_norm_total". Here 2.0 is `norm_type`, written as Python writes a float. The map is empty if no
/// parameter has a gradient. For a module, `named_parameters` is `module.named_parameters().pairs()`. Call it
/// where gradients are unscaled and not yet clipped: in Task::on_before_optimizer_step().
///
/// Shapes:  0-dim, on the gradients' devices; the total is on the first gradient's device.
/// Sync:    none.
/// Errors:  c10::ValueError for a `norm_type` that is not above 0.
/// Source:  Lightning's grad_norm().
std::map<std::string, at::Tensor> grad_norm(
    const std::vector<std::pair<std::string, at::Tensor>>& named_parameters, double norm_type = 2.0);

}  // namespace mantissa
