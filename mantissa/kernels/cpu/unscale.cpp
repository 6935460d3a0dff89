#include "mantissa/kernels/cpu/unscale.h"

#include <algorithm>
#include <atomic>

#include "mantissa/kernels/cpu/parts_internal.h"

namespace mantissa::kernels::cpu {

const std::vector<UnscaleBuild>& unscale_builds() {
  static const std::vector<UnscaleBuild> builds = {
#if defined(__x86_64__)
    {CpuTier::kAvx512, avx512::unscale},
    {CpuTier::kAvx2, avx2::unscale},
#endif
    {CpuTier::kGeneric, generic::unscale}
  };
  return builds;
}

bool unscale(const std::vector<Values>& all, float inv_scale, const UnscaleBuild& build) {
  std::vector<int64_t> begins;  // for each element of `all`, the index of its first value among all values
  begins.reserve(all.size());
  int64_t total = 0;
  for (const Values& values : all) {
    begins.push_back(total);
    total += values.count;
  }
  std::atomic<bool> found = false;
  // Waking a thread pays off for about ten microseconds of work or more.
  at::parallel_for(0, total, 1 << 15, [&](int64_t begin, int64_t end) {
    auto i = static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), begin) - begins.begin()) - 1;
    for (; i < all.size() && begins[i] < end; ++i) {
      const auto& [data, element, count] = all[i];
      const int64_t first = std::max(begin, begins[i]) - begins[i];
      const int64_t last = std::min(end, begins[i] + count) - begins[i];
      if (build.run(advanced(data, element, first), element, last - first, inv_scale)) found = true;
    }
  });
  return found;
}

}  // namespace mantissa::kernels::cpu
