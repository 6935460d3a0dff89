#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "mantissa/precision/precision.h"
#include "mantissa/trainer/strategy.h"

namespace mantissa {

/// Returns the maximum of each number over all processes of `strategy`.
std::vector<int64_t> max_of_processes(Strategy& strategy, const std::vector<int64_t>& numbers);

/// Returns what replaces a mode's magnitudes by the largest ones of all processes. `strategy` must outlive it.
Precision::MaxReduction max_reduction(Strategy& strategy);

/// Returns the smallest and the largest `number` of all processes. `number` is not the most negative one.
std::pair<int64_t, int64_t> range_of_processes(Strategy& strategy, int64_t number);

/// Returns the mean over all processes of a loss, for an optimizer that compares losses. An undefined loss
/// stays undefined.
/// Sync: with several processes, reads the loss.
at::Tensor mean_of_processes(Strategy& strategy, const at::Tensor& loss);

/// Checks a number that all processes must have in common.
/// Errors: c10::ValueError in all processes if they have different numbers: "fit: one process has 3 `what`
///         and another 4; `cure`".
void check_is_common(Strategy& strategy, int64_t number, const char* what, const char* cure);

}  // namespace mantissa
