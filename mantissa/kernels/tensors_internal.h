#pragma once

// What the functions that stand in libtorch's place ask of their tensors.

#include <ATen/core/NamedTensor.h>
#include <ATen/core/Tensor.h>

#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa {

/// Memory on the CPU that holds the values themselves.
inline bool is_plain(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.is_cpu() && !x.is_conj() && !x.is_neg() && !x.has_names();
}

/// Of a bf16 or fp16 tensor.
inline cpu::Element element_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? cpu::Element::kBFloat16 : cpu::Element::kFloat16;
}

}  // namespace mantissa
