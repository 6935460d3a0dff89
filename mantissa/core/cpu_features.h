#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace mantissa {

/// What a CPU can have beyond what every CPU of its architecture has: extensions of the instruction set, as far as
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
  /// Whether `other` is a subset of this set: a CPU with these features runs what needs those.
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

/// The features that the CPU and the operating system support, reduced by the environment variable MANTISSA_MAX_ISA,
/// so that one machine tests what lesser ones run. Decided at the first call.
///
/// Errors: c10::ValueError if the variable names no tier.
CpuFeatures cpu_features();

/// What the CPU and the operating system support, whatever the environment says.
CpuFeatures hardware_cpu_features();

/// "avx512_bf16", "amx_tile", ...: libtorch's name of the feature (at::cpu::get_cpu_capabilities()), or "neon".
std::string cpu_feature_name(CpuFeature feature);

/// The sets of features for which kernels are built. They have no order: ask with features_of() whether one includes
/// another.
enum class CpuTier {
  kGeneric,    ///< nothing: what every CPU of the architecture has
  kAvx2,       ///< AVX2, FMA and F16C: x86 of 2013 and later
  kAvx512,     ///< the same and AVX-512 F, BW, DQ and VL
  kAvx512Bf16  ///< the same and AVX512-BF16
};
bool operator<(CpuTier, CpuTier) = delete;
bool operator>(CpuTier, CpuTier) = delete;
bool operator<=(CpuTier, CpuTier) = delete;
bool operator>=(CpuTier, CpuTier) = delete;

/// What the kernels of `tier` need.
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
    case CpuTier::kAvx512Bf16:
      return kAvx512 | CpuFeatures{CpuFeature::kAvx512Bf16};
  }
  return {};
}

/// All tiers. One that includes another comes after it.
const std::vector<CpuTier>& cpu_tiers();

/// The last of all tiers whose kernels run with `features`: a name for reports.
CpuTier best_tier(CpuFeatures features);

/// best_tier(cpu_features()).
CpuTier cpu_tier();
/// best_tier(hardware_cpu_features()).
CpuTier hardware_cpu_tier();

/// "generic", "avx2", "avx512", "avx512_bf16": what MANTISSA_MAX_ISA takes.
std::string tier_name(CpuTier tier);

/// Those of `features` that the tier named `cap` needs; all of them for nullptr and "".
/// Errors: c10::ValueError that lists the names, if `cap` is none of them.
CpuFeatures capped_cpu_features(CpuFeatures features, const char* cap);

/// What the CPU calls itself, with its signature (family, model, stepping): "AMD EPYC 9005 (b00f21)"; ""
/// where it does not say.
std::string cpu_model();

}  // namespace mantissa
