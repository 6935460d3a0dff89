#include "mantissa/core/cpu_features.h"

#include <array>
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
/// Returns the register states that the operating system saves. Without its support, the contents of wide
/// registers would be lost at every switch of threads.
uint64_t saved_states() {
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

/// One register of CPUID, and the states that the system must save for the features in it.
struct Word {
  uint32_t leaf, subleaf;
  char reg;  // 'a', 'b', 'c' or 'd'
  uint64_t states;
};

constexpr uint64_t kYmm = (1U << 1) | (1U << 2), kZmm = kYmm | (1U << 5) | (1U << 6) | (1U << 7),
                   kTiles = (1U << 17) | (1U << 18);  // XCR0
constexpr Word kBasicC{1, 0, 'c', kYmm};
constexpr Word kExtendedB{7, 0, 'b', kYmm}, kExtendedB512{7, 0, 'b', kZmm}, kExtendedC512{7, 0, 'c', kZmm},
    kExtendedD512{7, 0, 'd', kZmm}, kExtendedDTiles{7, 0, 'd', kTiles};
constexpr Word kFurtherA{7, 1, 'a', kYmm}, kFurtherA512{7, 1, 'a', kZmm}, kFurtherATiles{7, 1, 'a', kTiles};

struct Detected {
  CpuFeature feature;
  Word word;
  int bit;
};
constexpr std::array<Detected, 15> kDetected = {{{CpuFeature::kFma, kBasicC, 12},
                                                 {CpuFeature::kF16c, kBasicC, 29},
                                                 {CpuFeature::kAvx2, kExtendedB, 5},
                                                 {CpuFeature::kAvx512F, kExtendedB512, 16},
                                                 {CpuFeature::kAvx512Dq, kExtendedB512, 17},
                                                 {CpuFeature::kAvx512Bw, kExtendedB512, 30},
                                                 {CpuFeature::kAvx512Vl, kExtendedB512, 31},
                                                 {CpuFeature::kAvx512Vnni, kExtendedC512, 11},
                                                 {CpuFeature::kAvx512Fp16, kExtendedD512, 23},
                                                 {CpuFeature::kAmxBf16, kExtendedDTiles, 22},
                                                 {CpuFeature::kAmxTile, kExtendedDTiles, 24},
                                                 {CpuFeature::kAmxInt8, kExtendedDTiles, 25},
                                                 {CpuFeature::kAvxVnni, kFurtherA, 4},
                                                 {CpuFeature::kAvx512Bf16, kFurtherA512, 5},
                                                 {CpuFeature::kAmxFp16, kFurtherATiles, 21}}};

/// Returns 0 if the CPU has no such leaf.
uint32_t read(const Word& word) {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(word.leaf, word.subleaf, &eax, &ebx, &ecx, &edx)) return 0;
  return word.reg == 'a' ? eax : word.reg == 'b' ? ebx : word.reg == 'c' ? ecx : edx;
}

CpuFeatures detect() {
  constexpr int kOsXsave = 27;  // of kBasicC: whether XCR0 can be read
  if ((read(kBasicC) >> kOsXsave & 1) == 0) return {};
  const uint64_t saved = saved_states();
  CpuFeatures features;
  for (const auto& [feature, word, bit] : kDetected)
    if ((saved & word.states) == word.states && (read(word) >> bit & 1) != 0)
      features = features | CpuFeatures{feature};
  return features;
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
CpuFeatures detect() {
#if defined(__aarch64__)
  return {CpuFeature::kNeon};
#else
  return {};
#endif
}
std::string model() { return ""; }
#endif

}  // namespace

CpuFeatures hardware_cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

CpuFeatures cpu_features() {
  static const CpuFeatures features =
      capped_cpu_features(hardware_cpu_features(), std::getenv("MANTISSA_MAX_ISA"));
  return features;
}

std::string cpu_feature_name(CpuFeature feature) {
  static constexpr std::array<const char*, kCpuFeatures> kNames = {
      "avx2",      "fma3",      "f16c",        "avx_vnni",    "avx512_f",    "avx512_bw",
      "avx512_dq", "avx512_vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
      "amx_int8",  "amx_bf16",  "amx_fp16",    "neon"};
  return kNames[static_cast<size_t>(feature)];
}

const std::vector<CpuTier>& cpu_tiers() {
  static const std::vector<CpuTier> tiers = {CpuTier::kGeneric,    CpuTier::kAvx2,       CpuTier::kAvx512,
                                             CpuTier::kAvx512Vnni, CpuTier::kAvx512Bf16, CpuTier::kAmxBf16};
  return tiers;
}

CpuTier best_tier(CpuFeatures features) {
  CpuTier best = CpuTier::kGeneric;
  for (const CpuTier tier : cpu_tiers())
    if (features.includes(features_of(tier))) best = tier;
  return best;
}

CpuTier cpu_tier() { return best_tier(cpu_features()); }

CpuTier hardware_cpu_tier() { return best_tier(hardware_cpu_features()); }

std::string tier_name(CpuTier tier) {
  switch (tier) {
    case CpuTier::kGeneric:
      return "generic";
    case CpuTier::kAvx2:
      return "avx2";
    case CpuTier::kAvx512:
      return "avx512";
    case CpuTier::kAvx512Vnni:
      return "avx512_vnni";
    case CpuTier::kAvx512Bf16:
      return "avx512_bf16";
    case CpuTier::kAmxBf16:
      return "amx_bf16";
  }
  return "unknown";
}

CpuFeatures capped_cpu_features(CpuFeatures features, const char* cap) {
  if (cap == nullptr || *cap == '\0') return features;
  std::vector<std::string> names;
  for (const CpuTier tier : cpu_tiers()) {
    if (tier_name(tier) == cap) return features & features_of(tier);
    names.push_back(tier_name(tier));
  }
  TORCH_CHECK_VALUE(false, "MANTISSA_MAX_ISA=", cap, ": no such tier", did_you_mean(cap, names),
                    "; choose one of ", join_names(names), ", or unset it");
}

std::string cpu_model() {
  static const std::string name = model();
  return name;
}

}  // namespace mantissa
