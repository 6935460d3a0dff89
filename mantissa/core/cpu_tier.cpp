#include "mantissa/core/cpu_tier.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

#if defined(__x86_64__)
/// The register states that the operating system saves: without its help a CPU's wide registers are lost at
/// every switch of threads.
uint64_t saved_states() {
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

CpuTier detect() {
  constexpr uint32_t kOsXsave = 1U << 27, kFma = 1U << 12, kF16c = 1U << 29;       // leaf 1, ecx
  constexpr uint32_t kAvx2 = 1U << 5;                                              // leaf 7, ebx
  constexpr uint32_t kAvx512 = (1U << 16) | (1U << 17) | (1U << 30) | (1U << 31);  // leaf 7, ebx: F DQ BW VL
  constexpr uint32_t kBf16 = 1U << 5;                                              // leaf 7.1, eax
  constexpr uint64_t kYmm = (1U << 1) | (1U << 2), kZmm = kYmm | (1U << 5) | (1U << 6) | (1U << 7);  // XCR0
  const auto has = [](auto set, auto bits) { return (set & bits) == bits; };

  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has(ecx, kOsXsave | kFma | kF16c)) return CpuTier::kGeneric;
  const uint64_t saved = saved_states();
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !has(ebx, kAvx2) || !has(saved, kYmm))
    return CpuTier::kGeneric;
  if (!has(ebx, kAvx512) || !has(saved, kZmm)) return CpuTier::kAvx2;
  if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !has(eax, kBf16)) return CpuTier::kAvx512;
  return CpuTier::kAvx512Bf16;
}
std::string model() {
  uint32_t words[12] = {}, signature = 0, unused = 0;
  constexpr uint32_t kFirst = 0x80000002;  // three leaves of 16 letters each
  for (uint32_t leaf = 0; leaf < 3; ++leaf) {
    uint32_t* const four = words + std::size_t{4} * leaf;
    if (!__get_cpuid(kFirst + leaf, four, four + 1, four + 2, four + 3)) return "";
  }
  const char* const letters = reinterpret_cast<const char*>(words);
  std::string name(letters, strnlen(letters, sizeof words));
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  __get_cpuid(1, &signature, &unused, &unused, &unused);
  std::ostringstream text;
  text << name << " (" << std::hex << signature << ')';
  return text.str();
}
#else
CpuTier detect() { return CpuTier::kGeneric; }
std::string model() { return ""; }
#endif

}  // namespace

const std::vector<CpuTier>& cpu_tiers() {
  static const std::vector<CpuTier> tiers = {CpuTier::kGeneric, CpuTier::kAvx2, CpuTier::kAvx512,
                                             CpuTier::kAvx512Bf16};
  return tiers;
}

std::string tier_name(CpuTier tier) {
  switch (tier) {
    case CpuTier::kGeneric:
      return "generic";
    case CpuTier::kAvx2:
      return "avx2";
    case CpuTier::kAvx512:
      return "avx512";
    case CpuTier::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

CpuTier hardware_cpu_tier() {
  static const CpuTier tier = detect();
  return tier;
}

std::string cpu_model() {
  static const std::string name = model();
  return name;
}

CpuTier capped_cpu_tier(CpuTier tier, const char* cap) {
  if (cap == nullptr || *cap == '\0') return tier;
  std::vector<std::string> names;
  for (const CpuTier candidate : cpu_tiers()) {
    if (tier_name(candidate) == cap) return std::min(tier, candidate);
    names.push_back(tier_name(candidate));
  }
  TORCH_CHECK_VALUE(false, "MANTISSA_MAX_ISA=", cap, ": no such tier", did_you_mean(cap, names),
                    "; choose one of ", join_names(names), ", or unset it");
}

CpuTier cpu_tier() {
  static const CpuTier tier = capped_cpu_tier(hardware_cpu_tier(), std::getenv("MANTISSA_MAX_ISA"));
  return tier;
}

}  // namespace mantissa
