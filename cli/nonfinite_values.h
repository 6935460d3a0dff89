#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa::cli {

/// Returns how many values are nan or inf. Counts piece by piece, because at::isfinite() makes several tensors of its
/// argument's size.
int64_t nonfinite_values(const at::Tensor& values);

}  // namespace mantissa::cli
