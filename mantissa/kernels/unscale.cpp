#include "mantissa/kernels/unscale.h"

#include <algorithm>
#include <atomic>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_native.h>

#include "mantissa/kernels/choice_internal.h"
#include "mantissa/kernels/parts_internal.h"
#include "mantissa/kernels/tensors_internal.h"

namespace mantissa {
namespace {

struct Run {
  void* data;
  cpu::Element element;
  int64_t begin, count;  ///< counted over all tensors
};

/// Whether it is not libtorch's kernel that is the one to go: for its errors too.
bool is_ours(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) && is_plain(tensor) &&
         tensor.is_non_overlapping_and_dense();
}

bool is_scalar(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() == 1 && tensor.scalar_type() == at::kFloat;
}

}  // namespace

const std::vector<UnscaleBuild>& unscale_builds() {
  static const std::vector<UnscaleBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, cpu::avx512::unscale},
    {CpuTier::kAvx2, cpu::avx2::unscale},
#endif
    {CpuTier::kGeneric, cpu::generic::unscale}
  };
  return builds;
}

void non_finite_check_and_unscale_(at::TensorList gradients, at::Tensor& found_inf,
                                   const at::Tensor& inv_scale) {
  const auto stock = [&] {
    at::native::_amp_foreach_non_finite_check_and_unscale_cpu_(gradients, found_inf, inv_scale);
  };
  if (!is_scalar(found_inf) || !is_scalar(inv_scale) || gradients.empty() || !is_ours(gradients[0]))
    return stock();
  const Kernel kernel = kernel_for(KernelFamily::kUnscale, element_of(gradients[0].scalar_type()));
  if (!kernel.tier) return stock();
  const UnscaleBuild& build = build_for(unscale_builds(), *kernel.tier);
  std::vector<Run> runs;
  runs.reserve(gradients.size());
  int64_t total = 0;
  for (const at::Tensor& gradient : gradients) {
    if (!is_ours(gradient)) return stock();
    runs.push_back(
        {gradient.mutable_data_ptr(), element_of(gradient.scalar_type()), total, gradient.numel()});
    total += gradient.numel();
  }
  const float factor = *inv_scale.const_data_ptr<float>();
  std::atomic<bool> found = false;
  // A thread is worth waking for some ten microseconds of work.
  at::parallel_for(0, total, 1 << 15, [&](int64_t begin, int64_t end) {
    auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                                [](int64_t at, const Run& each) { return at < each.begin; });
    for (--run; run != runs.end() && run->begin < end; ++run) {
      const int64_t first = std::max(begin, run->begin) - run->begin;
      const int64_t last = std::min(end, run->begin + run->count) - run->begin;
      if (build.run(advanced(run->data, run->element, first), run->element, last - first, factor))
        found = true;
    }
  });
  if (found) *found_inf.mutable_data_ptr<float>() = 1;
}

}  // namespace mantissa
