#include "mantissa/kernels/cpu/unscale.h"

#include <vector>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_native.h>

#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/aten/unscale_internal.h"

namespace mantissa::kernels::aten::unscale {
namespace {

/// True if our kernel takes `tensor`. libtorch's kernel takes all others, and every call that has to fail.
bool is_ours(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) && is_plain(tensor) &&
         tensor.is_non_overlapping_and_dense();
}

bool is_scalar(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() == 1 && tensor.scalar_type() == at::kFloat;
}

}  // namespace

void non_finite_check_and_unscale_(at::TensorList gradients, at::Tensor& found_inf,
                                   const at::Tensor& inv_scale) {
  const auto stock = [&] {
    at::native::_amp_foreach_non_finite_check_and_unscale_cpu_(gradients, found_inf, inv_scale);
  };
  if (!is_scalar(found_inf) || !is_scalar(inv_scale) || gradients.empty() || !is_ours(gradients[0]))
    return stock();
  const cpu::UnscaleBuild* const build =
      chosen_build(cpu::unscale_builds(), KernelFamily::kUnscale, element_of(gradients[0].scalar_type()));
  if (build == nullptr) return stock();
  std::vector<cpu::Values> all;
  all.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) {
    if (!is_ours(gradient)) return stock();
    all.push_back({gradient.mutable_data_ptr(), element_of(gradient.scalar_type()), gradient.numel()});
  }
  if (cpu::unscale(all, *inv_scale.const_data_ptr<float>(), *build)) *found_inf.mutable_data_ptr<float>() = 1;
}

}  // namespace mantissa::kernels::aten::unscale
