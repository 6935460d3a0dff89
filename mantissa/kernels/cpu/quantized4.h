#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the kernels for 4-bit weights inside this binary.
struct Quantized4Build {
  CpuTier tier;
  Quantize4Part* quantize;
  Dequantize4Part* dequantize;
  DequantizeRows4Part* dequantize_rows;
  Product4Part* product;
  ArrangeRows4* arrange_rows;  ///< null: product() also computes a few rows
  FewRows4Part* few_rows;
  int64_t mr, nr;     ///< see GemmBuild
  Tiles4Part* tiles;  ///< null, or for products of at least first_rows_in_tiles4(), if Linux grants tiles
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<Quantized4Build>& quantized4_builds();
/// Returns the best build that this CPU can run (cpu_features()).
const Quantized4Build& quantized4_build();

/// Quantizes and dequantizes with one build, which this CPU must be able to run: see Quantize4.
///
/// Numerics: every build gives the same bits.
/// Threads:  at::get_num_threads() threads in one parallel region; one thread for a few rows.
void quantize4(const Quantize4& problem, const Quantized4Build& build);
void dequantize4(const Dequantize4& problem, const Quantized4Build& build);
void dequantize_rows4(const DequantizeRows4& problem, const Quantized4Build& build);

/// Computes a product: see Product4.
///
/// Threads: as gemm() of gemm.h.
/// Memory:  at most 2.2 MiB per thread, kept until the thread ends; for a few rows, also a float32 copy of
///          them.
void product4(const Product4& problem, const Quantized4Build& build);

}  // namespace mantissa::kernels::cpu
