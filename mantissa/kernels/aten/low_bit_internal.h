#pragma once

#include "mantissa/kernels/int8.h"
#include "mantissa/kernels/quantized4.h"

/// Products with weights in 4 and 8 bits on the CPU, in the kernel that was chosen for them by measurement: see
/// choice.h. Besides our tiers, libtorch's kernels compete:
///
///   4 bits   the weight is dequantized into the dtype of the activations and multiplied by libtorch's product. It
///            exists as a whole during the call.
///   int8     libtorch's product of int8 with sums of int32; scales and addend follow. The bits are those of our
///            tiers.
///
/// With MANTISSA_CPU_KERNELS=0 libtorch's kernels compute all of them. The switch of overrides.h does not matter,
/// because libtorch has no operator that these products replace.
///
/// Threads: at::get_num_threads() threads.
/// Errors:  those of kernel_for().
namespace mantissa::kernels::aten::low_bit {

void product4(const Product4& problem);
void product_int8(const ProductInt8& problem);

}  // namespace mantissa::kernels::aten::low_bit
