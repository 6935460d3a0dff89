#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

/// What the packed formats share about the rows of a weight, which an embedding looks up.
namespace mantissa::quant {

/// Throws index_select()'s error if one of `rows` (int64 [n]) is not from 0 to `count` - 1. Sync: none.
void check_rows(const at::Tensor& rows, int64_t count);

/// Returns the sizes of `rows` of a weight: [n, sizes[1:]...].
std::vector<int64_t> sizes_of_rows(const at::Tensor& rows, at::IntArrayRef sizes);

}  // namespace mantissa::quant
