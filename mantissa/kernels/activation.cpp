#include "mantissa/kernels/activation.h"

#include "mantissa/kernels/choice_internal.h"
#include "mantissa/kernels/parts_internal.h"

namespace mantissa {
namespace {

/// f(begin, end) for the parts of [0, count): a thread is worth waking for some ten microseconds of work.
template <typename F>
void in_parts(int64_t count, const F& f) {
  at::parallel_for(0, count, 1 << 14, f);
}

}  // namespace

const std::vector<ActivationBuild>& activation_builds() {
  static const std::vector<ActivationBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, cpu::avx512::activate, cpu::avx512::activate_backward},
    {CpuTier::kAvx2, cpu::avx2::activate, cpu::avx2::activate_backward},
#endif
    {CpuTier::kGeneric, cpu::generic::activate, cpu::generic::activate_backward}
  };
  return builds;
}

void activate(cpu::Activation activation, cpu::Element element, const void* x, void* out, int64_t count) {
  const ActivationBuild& build = chosen_build(activation_builds(), KernelFamily::kGelu, element);
  in_parts(count, [&](int64_t begin, int64_t end) {
    build.run(activation, element, advanced(x, element, begin), advanced(out, element, begin), end - begin);
  });
}

void activate_backward(cpu::Activation activation, cpu::Element element, const void* gradient, const void* x,
                       void* out, int64_t count) {
  const ActivationBuild& build = chosen_build(activation_builds(), KernelFamily::kGeluBackward, element);
  in_parts(count, [&](int64_t begin, int64_t end) {
    build.run_backward(activation, element, advanced(gradient, element, begin), advanced(x, element, begin),
                       advanced(out, element, begin), end - begin);
  });
}

}  // namespace mantissa
