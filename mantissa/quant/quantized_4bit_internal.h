#pragma once

#include <ATen/core/Tensor.h>

#include "mantissa/kernels/quantized4.h"
#include "mantissa/quant/quantized_4bit.h"

namespace mantissa::quant {

/// Returns the signed dynamic map, [256] float32. All tensors on the CPU share one.
at::Tensor dynamic_map(at::Device device);

/// Checks that there are as many codes and scales as the shape has values, side by side in memory, so that no kernel
/// reads past their end.
/// Errors: c10::ValueError that begins with `function`.
void check_is_whole(const char* function, const Quantized4Bit& quantized);

/// Returns the bytes of the codes, whatever dtype they are stored in: [(n + 1) / 2] uint8.
at::Tensor bytes_of(const Quantized4Bit& quantized);

/// Returns how many values a row has, an index of the first of the weight's dimensions. 0 if there are no rows.
int64_t width_of(const Quantized4Bit& quantized);

kernels::Code4 code_of(Format format);

}  // namespace mantissa::quant
