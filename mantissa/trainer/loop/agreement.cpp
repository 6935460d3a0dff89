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

at::Tensor mean_of_processes(Strategy& strategy, const at::Tensor& loss) {
  if (strategy.world_size() == 1 || !loss.defined()) return loss;
  const at::Tensor own = at::tensor({loss.item<double>()}, at::kDouble);
  const double sum = strategy.all_reduce(own, ReduceOp::kSum).item<double>();
  return at::scalar_tensor(sum / static_cast<double>(strategy.world_size()),
                           loss.options().requires_grad(false));
}

void check_is_common(Strategy& strategy, int64_t number, const char* what, const char* cure) {
  const std::vector<int64_t> range = max_of_processes(strategy, {number, -number});
  TORCH_CHECK_VALUE(range[0] == -range[1], "fit: one process has ", -range[1], " ", what, " and another ",
                    range[0], "; ", cure);
}

}  // namespace mantissa
