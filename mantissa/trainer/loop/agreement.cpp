#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/trainer/loop/agreement_internal.h"

namespace mantissa {

std::vector<int64_t> max_of_processes(Strategy& strategy, const std::vector<int64_t>& numbers) {
  if (strategy.world_size() == 1) return numbers;
  const at::Tensor largest = strategy.all_reduce(at::tensor(numbers, at::kLong), ReduceOp::kMax).contiguous();
  const auto* const begin = largest.const_data_ptr<int64_t>();
  return {begin, begin + largest.numel()};
}

Precision::MaxReduction max_reduction(Strategy& strategy) {
  return [&strategy](const at::Tensor& values) {
    values.copy_(strategy.all_reduce(values.to(at::kDouble), ReduceOp::kMax));
  };
}

at::Tensor mean_of_processes(Strategy& strategy, const at::Tensor& loss) {
  if (strategy.world_size() == 1 || !loss.defined()) return loss;
  const at::Tensor own = at::tensor({loss.item<double>()}, at::kDouble);
  const double sum = strategy.all_reduce(own, ReduceOp::kSum).item<double>();
  return at::scalar_tensor(sum / static_cast<double>(strategy.world_size()),
                           loss.options().requires_grad(false));
}

std::pair<int64_t, int64_t> range_of_processes(Strategy& strategy, int64_t number) {
  const std::vector<int64_t> largest = max_of_processes(strategy, {number, -number});
  return {-largest[1], largest[0]};
}

void check_is_common(Strategy& strategy, int64_t number, const char* what, const char* cure) {
  const auto [smallest, largest] = range_of_processes(strategy, number);
  TORCH_CHECK_VALUE(smallest == largest, "fit: one process has ", smallest, " ", what, " and another ",
                    largest, "; ", cure);
}

}  // namespace mantissa
