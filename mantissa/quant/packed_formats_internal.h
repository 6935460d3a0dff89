#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

/// What the packed formats share.
namespace mantissa::quant {

/// The end of an error about weights that are saved in another format, after the mode to choose.
constexpr const char* kOrRestore =
    ", or restore the file's weights to float first (mantissa convert --dequantize)";

// The rows of a weight, which an embedding looks up.

/// Throws index_select()'s error if one of `rows` (int64 [n]) is not from 0 to `count` - 1. Sync: none.
void check_rows(const at::Tensor& rows, int64_t count);

/// Returns the sizes of `rows` of a weight: [n, sizes[1:]...].
std::vector<int64_t> sizes_of_rows(const at::Tensor& rows, at::IntArrayRef sizes);

}  // namespace mantissa::quant
