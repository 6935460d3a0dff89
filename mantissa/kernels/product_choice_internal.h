#pragma once

#include "mantissa/kernels/cpu/attention.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::products {

/// Whether the CPU has instructions that multiply this type, of which oneDNN makes use. A capped tier stands
/// for a CPU without them.
bool is_native(cpu::Element element);

/// Whether `g`, of 16-bit operands, is faster with gemm() than with libtorch's kernel on this CPU. `is_dot`:
/// it is the product of two vectors, for which libtorch has a kernel of its own.
bool is_faster_here(const cpu::Gemm& g, bool is_dot);

/// The same for attention().
bool is_faster_here(const cpu::Attention& g);

}  // namespace mantissa::products
