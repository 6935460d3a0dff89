#pragma once

#include "mantissa/kernels/gemm.h"

namespace mantissa::kernels::aten::matmul {

/// Computes `g` with our build that was chosen for such products, or with our best build if libtorch's kernel
/// was chosen. Nothing is measured for a product of two float32 operands, such as the sums of a bias's
/// gradient. Rooms that have a product in this form, such as fp8, call it directly.
void gemm(const Gemm& g);

}  // namespace mantissa::kernels::aten::matmul
