#pragma once

// The vectors of the tier that a source of this folder is compiled for, as `Vectors` in the tier's namespace. CMake
// compiles each source once for each tier that has vectors, and names the tier in MANTISSA_CPU_TIER.

#include MANTISSA_CPU_VECTORS  // "mantissa/kernels/cpu/avx2/vector_internal.h"
