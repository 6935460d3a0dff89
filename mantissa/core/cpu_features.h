#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace mantissa {

/// Extensions of the instruction set that a CPU may have beyond its architecture's baseline, as far as
/// kernels may need them.
enum class CpuFeature : uint8_t {
  kAvx2,
  kFma,
  kF16c,  ///< conversions between float16 and float32
  kAvxVnni,
  kAvx512F,
  kAvx512Bw,
  kAvx512Dq,
  kAvx512Vl,
  kAvx512Vnni,  ///< products of int8
  kAvx512Bf16,  ///< products of bfloat16 pairs
  kAvx512Fp16,  ///< arithmetic of float16
  kAmxTile,     ///< a process has to ask Linux for the tiles before it uses them
  kAmxInt8,
  kAmxBf16,
  kAmxFp16,
  kNeon  ///< Advanced SIMD; every 64-bit Arm CPU has it
};
constexpr int kCpuFeatures = static_cast<int>(CpuFeature::kNeon) + 1;

/// A set of features.
class CpuFeatures {
 public:
  constexpr CpuFeatures() = default;
  constexpr CpuFeatures(std::initializer_list<CpuFeature> features) {
    for (const CpuFeature feature : features) bits_ |= bit(feature);
  }

  constexpr bool has(CpuFeature feature) const { return (bits_ & bit(feature)) != 0; }
  /// Whether `other` is a subset of this set: a CPU with these features can run code that needs `other`.
  constexpr bool includes(CpuFeatures other) const { return (bits_ & other.bits_) == other.bits_; }

  friend constexpr CpuFeatures operator|(CpuFeatures a, CpuFeatures b) {
    return CpuFeatures(a.bits_ | b.bits_);
  }
  friend constexpr CpuFeatures operator&(CpuFeatures a, CpuFeatures b) {
    return CpuFeatures(a.bits_ & b.bits_);
  }
  friend constexpr bool operator==(CpuFeatures, CpuFeatures) = default;

 private:
  constexpr explicit CpuFeatures(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t bit(CpuFeature feature) { return uint32_t{1} << static_cast<int>(feature); }

  uint32_t bits_ = 0;
};

/// Returns the features that the CPU and the operating system support, limited by the environment variable
/// MANTISSA_MAX_ISA, so that one machine can test the code of lesser ones. It is decided at the first call.
///
/// Errors: c10::ValueError if the variable names no tier.
CpuFeatures cpu_features();

/// Returns the features that the CPU and the operating system support, whatever the environment says.
CpuFeatures hardware_cpu_features();

/// Returns libtorch's name of the feature (at::cpu::get_cpu_capabilities()), such as "avx512_bf16" or
/// "amx_tile"; or "neon".
std::string cpu_feature_name(CpuFeature feature);

/// The sets of features for which kernels are built. They are not ordered: compare features_of() to find out
/// whether one includes another.
enum class CpuTier {
  kGeneric,     ///< no extensions: runs on every CPU of the architecture
  kAvx2,        ///< AVX2, FMA and F16C: x86 of 2013 and later
  kAvx512,      ///< kAvx2 and AVX-512 F, BW, DQ and VL
  kAvx512Vnni,  ///< kAvx512 and AVX512-VNNI
  kAvx512Bf16,  ///< kAvx512Vnni and AVX512-BF16; every CPU that has the second has the first
  kAmxBf16      ///< kAvx512Bf16 and AMX's tiles with products of bfloat16: Intel Xeon of 2023 and later
};
bool operator<(CpuTier, CpuTier) = delete;
bool operator>(CpuTier, CpuTier) = delete;
bool operator<=(CpuTier, CpuTier) = delete;
bool operator>=(CpuTier, CpuTier) = delete;

/// Returns the features that the kernels of `tier` need.
constexpr CpuFeatures features_of(CpuTier tier) {
  constexpr CpuFeatures kAvx2 = {CpuFeature::kAvx2, CpuFeature::kFma, CpuFeature::kF16c};
  constexpr CpuFeatures kAvx512 = kAvx2 | CpuFeatures{CpuFeature::kAvx512F, CpuFeature::kAvx512Bw,
                                                      CpuFeature::kAvx512Dq, CpuFeature::kAvx512Vl};
  switch (tier) {
    case CpuTier::kGeneric:
      return {};
    case CpuTier::kAvx2:
      return kAvx2;
    case CpuTier::kAvx512:
      return kAvx512;
    case CpuTier::kAvx512Vnni:
      return kAvx512 | CpuFeatures{CpuFeature::kAvx512Vnni};
    case CpuTier::kAvx512Bf16:
      return kAvx512 | CpuFeatures{CpuFeature::kAvx512Vnni, CpuFeature::kAvx512Bf16};
    case CpuTier::kAmxBf16:
      return kAvx512 | CpuFeatures{CpuFeature::kAvx512Vnni, CpuFeature::kAvx512Bf16, CpuFeature::kAmxTile,
                                   CpuFeature::kAmxBf16};
  }
  return {};
}

/// Returns all tiers. A tier that includes another comes after it.
const std::vector<CpuTier>& cpu_tiers();

/// Returns the last tier whose kernels run with `features`, as a name for reports.
CpuTier best_tier(CpuFeatures features);

/// Returns best_tier(cpu_features()).
CpuTier cpu_tier();
/// Returns best_tier(hardware_cpu_features()).
CpuTier hardware_cpu_tier();

/// Returns "generic", "avx2", "avx512", "avx512_vnni", "avx512_bf16" or "amx_bf16", the values of MANTISSA_MAX_ISA.
std::string tier_name(CpuTier tier);

/// Returns those of `features` that the tier named `cap` needs; all of them for nullptr and "".
/// Errors: c10::ValueError that lists the names, if `cap` names no tier.
CpuFeatures capped_cpu_features(CpuFeatures features, const char* cap);

/// Returns the CPU's own name with its signature (family, model, stepping), such as "AMD EPYC 9005 (b00f21)";
/// "" if the CPU does not report it.
std::string cpu_model();

}  // namespace mantissa
