#pragma once

namespace mantissa::python {

/// Switches kernels for bitsandbytes's operators on the CPU on or off; returns whether they were on.
///
/// Operators: quantize_4bit, dequantize_4bit, gemm_4bit, gemv_4bit, int8_linear_matmul, int8_scaled_mm,
///            int8_vectorwise_quant and optimizer_update_8bit_blockwise. docs/python.md says how they differ from bitsandbytes's own.
/// Threads:   no other thread may use bitsandbytes meanwhile.
/// Errors:    c10::Error if bitsandbytes has not defined the operators yet, or has defined them otherwise.
bool use_bitsandbytes_kernels(bool on);

}  // namespace mantissa::python
