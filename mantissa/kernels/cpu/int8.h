#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/int8_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the kernels for 8-bit integers inside this binary.
struct Int8Build {
  CpuTier tier;
  QuantizeInt8Part* quantize;
  DequantizeInt8Part* dequantize;
  ProductInt8Part* product;
  int64_t mr, nr;  ///< see GemmBuild
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<Int8Build>& int8_builds();
/// Returns the best build that this CPU can run (cpu_features()).
const Int8Build& int8_build();

/// Quantizes the rows of a matrix with one build, which this CPU must be able to run: see QuantizeInt8. If
/// `outliers` is not null, sets outliers[j] to 1 for each column j that has an outlier.
///
/// Numerics: every build gives the same bits.
/// Threads:  at::get_num_threads() threads in one parallel region.
void quantize_int8(const QuantizeInt8& problem, uint8_t* outliers, const Int8Build& build);

/// Restores rows: see DequantizeInt8.
///
/// Numerics: every build gives the same bits.
/// Threads:  at::get_num_threads() threads in one parallel region; one thread for a few rows.
void dequantize_int8(const DequantizeInt8& problem, const Int8Build& build);

/// Computes a product: see ProductInt8.
///
/// Threads: as gemm() of gemm.h.
/// Memory:  at most 2.2 MiB per thread, kept until the thread ends.
void product_int8(const ProductInt8& problem, const Int8Build& build);

}  // namespace mantissa::kernels::cpu
