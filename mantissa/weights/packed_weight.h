#pragma once

#include <ATen/core/Tensor.h>

#include "mantissa/weights/packed_data.h"

namespace mantissa {

/// Returns a tensor for a packed weight. A module that is given it as a weight (replace_weight.h) computes
/// with it without a change to its code: the tensor decides its own arithmetic.
///
/// Shapes:   the tensor has data->sizes(), and strides as if it were contiguous.
/// Numerics: `dtype` (float32, float16 or bfloat16) is nominal. It decides what embedding() and dequantize()
///           return, and what options() says. A product has the dtype of its input.
/// Works:    t(), transpose() and permute() of two dimensions; products with linear(), matmul(), mm(), mv(),
///           addmm() and einsum(), with gradients to the input and the bias; embedding(), embedding_bag() and
///           convolutions; detach(), data(), clone(), to(), set_data(), Module::to() and Module::clone();
///           printing, which shows the dequantized values; all that reads only sizes, dtype or device, such
///           as zeros_like(). In autocast regions, under no_grad and in InferenceMode too.
/// Refused:  everything else, recurrent layers and products of batches of packed matrices included, with
///           c10::NotImplementedError that names the operation: pass
///           dequantize(weight) to it. Access to the bytes (data_ptr(), torch::save()) throws c10::Error.
/// Casts:    to(float16), to(bfloat16) and to(float32) change the nominal dtype and copy nothing. to(float64)
///           returns a plain tensor of the dequantized values, to(kMeta) a plain one without values.
/// Gradient: the tensor is frozen. If set_requires_grad(true) was called, the products throw c10::ValueError.
/// Memory:   storage().nbytes() is data->nbytes(). itemsize() and nbytes() follow the nominal dtype.
/// Threads:  reading from any number of threads is safe.
/// Errors:   c10::ValueError for another dtype, or no data.
/// Example:  packed_weight_test.cpp, PackedWeight.APlainLinearComputesWithIt
at::Tensor make_packed_weight(PackedDataPtr data, at::ScalarType dtype = at::kFloat);

/// Whether `tensor` is a packed weight, or a view of one such as t(). An undefined tensor is not.
bool is_packed(const at::Tensor& tensor);

/// Returns the data of a packed weight or of a view of one.
/// Errors: c10::TypeError if `tensor` is not packed.
PackedDataPtr packed_data(const at::Tensor& tensor);

/// Returns a packed weight's values as a plain tensor of its nominal dtype; a plain tensor is returned as it
/// is. Tensor::dequantize() does the same for packed weights.
at::Tensor dequantize(const at::Tensor& tensor);

/// Whether `weight` is that of a layer with an adapter, which wraps the layer's own weight.
bool is_adapted(const at::Tensor& weight);

/// Returns the weight that an adapter wraps, plain or packed (see PackedData::base()); any other tensor is
/// returned as it is. A mode that quantizes a model asks this for the weight to quantize.
at::Tensor base_weight(const at::Tensor& weight);

/// Returns `weight` with another base: an adapter around `base`, if `weight` is an adapter, and otherwise
/// `base` itself. It is the opposite of base_weight().
/// Errors: c10::ValueError if the sizes differ.
at::Tensor with_base_weight(const at::Tensor& weight, const at::Tensor& base);

}  // namespace mantissa
