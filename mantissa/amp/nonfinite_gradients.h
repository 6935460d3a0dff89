#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// What find_nonfinite_gradients() found in one gradient.
struct NonfiniteGradient {
  std::string name;
  std::vector<int64_t> sizes;  ///< of the gradient
  int64_t inf_count = 0;       ///< elements that are inf or -inf
  int64_t nan_count = 0;
  int64_t numel = 0;  ///< elements looked at; of a sparse gradient, its stored ones
};

/// The parameters whose gradients hold inf or nan, in the order given: where to look when steps are skipped.
/// `named_parameters`: for a module, `module.named_parameters().pairs()`. Parameters without a gradient are
/// clean.
///
/// Memory: a mask of one gradient at a time.
/// Sync:   waits once for each device that holds gradients.
/// Source: terminate_on_nan of Lightning 1.5 named the parameter (spec NF-3).
/// Example: nonfinite_gradients_test.cpp, NonfiniteGradients.NF03_NamesTheParameters
std::vector<NonfiniteGradient> find_nonfinite_gradients(
    const std::vector<std::pair<std::string, at::Tensor>>& named_parameters);

/// "conv1.weight [16, 1, 3, 3]: 3 inf, 0 nan of 144; ...", of at most `most`, and how many more there are.
std::string describe(const std::vector<NonfiniteGradient>& found, size_t most = 5);

}  // namespace mantissa
