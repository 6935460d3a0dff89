#pragma once

#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/fp8_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the casts to 8 and 4 bits inside this binary.
struct Fp8Build {
  CpuTier tier;
  FindMagnitudesOf* find_magnitudes;
  QuantizeFp8Values* quantize;
  DequantizeFp8Values* dequantize;
  QuantizeE2M1Values* quantize_e2m1;
  FindBlockMagnitudesOf* find_block_magnitudes;
  QuantizeBlocksOf* quantize_blocks;
  RestoreBlocksOf* restore_blocks;
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<Fp8Build>& fp8_builds();

/// Returns the best build for this CPU, for code that divides its work among threads itself: the recipes in
/// blocks.
const Fp8Build& best_fp8_build();

/// These compute in parallel with the best build.
///
/// Threads: up to at::get_num_threads(). Results do not depend on their number.
Magnitudes find_magnitudes(const FindMagnitudes& problem);
Magnitudes quantize_fp8(const QuantizeFp8& problem);
void dequantize_fp8(const DequantizeFp8& problem);

}  // namespace mantissa::kernels::cpu
