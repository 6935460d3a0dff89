#pragma once

// What the quantizing functions of this room have in common.

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/kernels/fp8.h"

namespace mantissa::fp8 {

/// A matrix in memory: the leading dimensions of a tensor are its rows.
struct Rows {
  at::Tensor tensor;  ///< contiguous; owns the memory
  kernels::Element element;
  int64_t rows, cols;

  const void* at(int64_t row, int64_t col) const {
    return static_cast<const char*>(tensor.const_data_ptr()) +
           (row * cols + col) * kernels::element_size(element);
  }
};

inline kernels::Element element_of(at::ScalarType dtype) {
  return dtype == at::kFloat      ? kernels::Element::kFloat32
         : dtype == at::kBFloat16 ? kernels::Element::kBFloat16
                                  : kernels::Element::kFloat16;
}

/// Throws unless the functions of this room can read the tensor; `name` is the function that the error names.
/// Errors: c10::ValueError for an undefined tensor; c10::TypeError for another dtype than float32, float16 and
///         bfloat16; c10::NotImplementedError for a tensor that is not dense.
inline void check_input(const at::Tensor& x, std::string_view name) {
  TORCH_CHECK_VALUE(x.defined(), name, ": got an undefined tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(x.layout() == at::kStrided, name, ": got a tensor with layout ", x.layout(),
                              "; convert it with to_dense()");
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, name, ": got ", dtype,
                   "; use float32, float16 or bfloat16");
}

/// Returns the tensor as a matrix.
/// Errors: those of check_input().
inline Rows rows_of(const at::Tensor& x, std::string_view name) {
  check_input(x, name);
  const int64_t cols = x.dim() == 0 ? 1 : x.size(-1);
  return {x.detach().resolve_neg().contiguous(), element_of(x.scalar_type()),
          cols == 0 ? 0 : x.numel() / cols, cols};
}

/// Throws c10::ValueError unless the matrix consists of whole blocks.
inline void check_blocks(const Rows& x, int64_t block_rows, int64_t block_cols, std::string_view name) {
  TORCH_CHECK_VALUE(x.rows % block_rows == 0 && x.cols % block_cols == 0, name, ": a tensor of ",
                    x.tensor.sizes(), " has ", x.rows, " rows of ", x.cols,
                    " values, which are no whole blocks of ", block_rows, " x ", block_cols,
                    "; pad it with zeros");
}

inline kernels::Fp8 format_of_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat8_e5m2 ? kernels::Fp8::kE5M2 : kernels::Fp8::kE4M3;
}

}  // namespace mantissa::fp8
