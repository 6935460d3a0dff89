#pragma once

#include <ATen/core/Tensor.h>

#include "mantissa/core/torch_compat_internal.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"

namespace mantissa {

/// True for strided numbers in the CPU's memory, which a kernel can read directly. A tensor with another
/// backend's key, such as a packed weight, has the CPU as its device but no numbers in its storage.
inline bool is_plain(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.key_set().highestBackendKey() == c10::BackendComponent::CPUBit &&
         x.is_cpu() && !x.is_conj() && !x.is_neg() && !has_names(x);
}

/// `x` as a matrix if it has two dimensions, as a batch of matrices if it has three; a vector is one column.
template <typename Pointer>
kernels::MatrixOf<Pointer> matrix(Pointer data, const at::Tensor& x) {
  const int64_t batch_dims = x.dim() == 3 ? 1 : 0;
  const auto stride = [&](int64_t dim) { return dim < x.dim() ? x.stride(dim) : 0; };
  return {data, element_of(x.scalar_type()), stride(batch_dims), stride(batch_dims + 1),
          batch_dims == 1 ? x.stride(0) : 0};
}

}  // namespace mantissa
