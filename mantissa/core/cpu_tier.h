#pragma once

#include <string>
#include <vector>

namespace mantissa {

/// The instruction sets that kernels are built for. Ordered: a CPU of one tier runs the kernels of all lower
/// ones.
enum class CpuTier {
  kGeneric,    ///< what every CPU of the architecture has
  kAvx2,       ///< AVX2, FMA and F16C: x86 of 2013 and later
  kAvx512,     ///< AVX512 F, BW, DQ and VL
  kAvx512Bf16  ///< the same with products of bf16 pairs (AVX512-BF16)
};

/// The best tier that this CPU and its operating system run, capped by the environment variable
/// MANTISSA_MAX_ISA, so that one machine tests the tiers below its own. Decided at the first call.
///
/// Errors: c10::ValueError if the variable names no tier.
CpuTier cpu_tier();

/// What the CPU and the operating system run, whatever the environment says.
CpuTier hardware_cpu_tier();

/// What the CPU calls itself, with its signature (family, model, stepping): "AMD EPYC 9005 (b00f21)"; ""
/// where it does not say.
std::string cpu_model();

/// The lower of `tier` and the tier that `cap` names; `tier` itself for nullptr and "".
/// Errors: c10::ValueError that lists the names, if `cap` is none of them.
CpuTier capped_cpu_tier(CpuTier tier, const char* cap);

/// "generic", "avx2", "avx512", "avx512_bf16": what MANTISSA_MAX_ISA takes.
std::string tier_name(CpuTier tier);

/// All tiers, lowest first.
const std::vector<CpuTier>& cpu_tiers();

}  // namespace mantissa
