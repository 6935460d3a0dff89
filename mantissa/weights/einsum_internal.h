#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace mantissa {

/// Returns an einsum of two tensors as a matmul(), if exactly one of them `is_matrix` and the sum is over one
/// of its dimensions; nothing if it is no such product.
std::optional<at::Tensor> einsum_as_product(std::string_view equation, at::TensorList tensors,
                                            bool (*is_matrix)(const at::Tensor&));

}  // namespace mantissa
