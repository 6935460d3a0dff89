#pragma once

#include <ATen/core/Tensor.h>

#include "mantissa/kernels/blockwise.h"
#include "mantissa/kernels/element.h"
#include "mantissa/kernels/int8.h"

namespace mantissa {

/// `dtype` is float32, bfloat16 or float16.
kernels::Element element_of(at::ScalarType dtype);

/// A tensor in the form that the kernels take: contiguous, and of a dtype that they know.
struct Operand {
  at::Tensor original, plain;

  explicit Operand(const at::Tensor& tensor);
  Operand(const at::Tensor& tensor, at::ScalarType dtype);
  /// Copies the values to the tensor that was given, unless the kernel has written into it.
  void write_back() const;
};

/// Returns the product of int8 codes a [m, k] and b [n, k], whose rows may have gaps. Scales, addend and result are left
/// to the caller.
kernels::ProductInt8 product_of_codes(const at::Tensor& a, const at::Tensor& b);

/// Return the problems that write the codes and scales of `values`, and the values of codes. All tensors are contiguous: values
/// and absmax are float32, codes are uint8.
kernels::QuantizeBlockwise encoding_of(const at::Tensor& values, const at::Tensor& codes,
                                       const at::Tensor& absmax, kernels::DynamicMap map);
kernels::DequantizeBlockwise decoding_of(const at::Tensor& codes, const at::Tensor& absmax,
                                         const at::Tensor& values, kernels::DynamicMap map);

/// Returns an optimizer's state in contiguous tensors: codes with their absmax, or float32 values if absmax is undefined.
kernels::UpdateState update_state(const at::Tensor& state, const at::Tensor& absmax);

}  // namespace mantissa
