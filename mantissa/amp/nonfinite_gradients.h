#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// The result of find_nonfinite_gradients() for one gradient.
struct NonfiniteGradient {
  std::string name;
  std::vector<int64_t> sizes;  ///< of the gradient
  int64_t inf_count = 0;       ///< elements that are inf or -inf
  int64_t nan_count = 0;
  int64_t numel = 0;  ///< elements checked; for a sparse gradient, the stored ones
};

/// Finds the parameters whose gradients hold inf or nan, in the given order; look here first when steps are
/// skipped. For a module, `named_parameters` is `module.named_parameters().pairs()`. A parameter without a
/// gradient counts as clean.
///
/// Memory: a mask of one gradient at a time.
/// Sync:   waits once for each device that holds gradients.
/// Source: terminate_on_nan of Lightning 1.5, which named the parameter.
/// Example: nonfinite_gradients_test.cpp, NonfiniteGradients.NF03_NamesTheParameters
std::vector<NonfiniteGradient> find_nonfinite_gradients(
    const std::vector<std::pair<std::string, at::Tensor>>& named_parameters);

/// Returns "conv1.weight [16, 1, 3, 3]: 3 inf, 0 nan of 144; ..." for at most `most` parameters, and how many
/// more there are.
std::string describe(const std::vector<NonfiniteGradient>& found, size_t most = 5);

}  // namespace mantissa
