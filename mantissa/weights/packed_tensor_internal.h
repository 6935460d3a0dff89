#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "mantissa/weights/packed_data.h"

/// How a packed weight is made of libtorch's parts. It is an ordinary c10::TensorImpl with two peculiarities:
/// its key set has the backend PrivateUse2, so that the dispatcher calls the kernels of this room, and its
/// storage owns a PackedData instead of bytes. There is no subclass of TensorImpl, because set_data() copies
/// key set, storage, sizes and dtype into the tensor that a module holds already, but not a class. This is
/// how Module::clone(), Module::to() and replace_weight() work.
namespace mantissa::packed {

/// Returns the data of a packed weight or of a view of one; null for any other tensor.
const PackedDataPtr* find_data(const at::Tensor& tensor);

/// Returns data of a tensor that is known to be packed.
const PackedDataPtr& data_of(const at::Tensor& weight);

/// Returns a tensor on the storage of `weight` with another nominal dtype. It is not a view for autograd.
at::Tensor with_dtype(const at::Tensor& weight, at::ScalarType dtype);

/// Returns a view on the storage of `weight`.
at::Tensor view_of(const at::Tensor& weight, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Returns the transposed view of a packed matrix.
at::Tensor transposed(const at::Tensor& weight);

/// Whether `weight` is a transposed view: its values are those of W^T, where W has the data's sizes.
bool is_transposed(const at::Tensor& weight);

/// Returns the values of `weight`, which may be a transposed view, as a plain tensor.
at::Tensor dequantize(const at::Tensor& weight, at::ScalarType dtype);

/// Throws c10::ValueError if `weight` requires a gradient. `operation` begins the message.
void check_frozen(const at::Tensor& weight, const char* operation);

/// Throws c10::NotImplementedError: `operation` cannot take the packed `weight`.
[[noreturn]] void refuse(const char* operation, const at::Tensor& weight);

}  // namespace mantissa::packed
