#include "mantissa/kernels/cpu/activation.h"

#include "mantissa/kernels/cpu/parts_internal.h"

namespace mantissa::kernels::cpu {
namespace {

/// Calls f(begin, end) for parts of [0, count). Waking a thread pays from about ten microseconds of work.
template <typename F>
void in_parts(int64_t count, const F& f) {
  at::parallel_for(0, count, 1 << 14, f);
}

}  // namespace

const std::vector<ActivationBuild>& activation_builds() {
  static const std::vector<ActivationBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, avx512::activate, avx512::activate_backward},
    {CpuTier::kAvx2, avx2::activate, avx2::activate_backward},
#endif
    {CpuTier::kGeneric, generic::activate, generic::activate_backward}
  };
  return builds;
}

void activate(Activation activation, Element element, const void* x, void* out, int64_t count,
              const ActivationBuild& build) {
  in_parts(count, [&](int64_t begin, int64_t end) {
    build.run(activation, element, advanced(x, element, begin), advanced(out, element, begin), end - begin);
  });
}

void activate_backward(Activation activation, Element element, const void* gradient, const void* x, void* out,
                       int64_t count, const ActivationBuild& build) {
  in_parts(count, [&](int64_t begin, int64_t end) {
    build.run_backward(activation, element, advanced(gradient, element, begin), advanced(x, element, begin),
                       advanced(out, element, begin), end - begin);
  });
}

}  // namespace mantissa::kernels::cpu
