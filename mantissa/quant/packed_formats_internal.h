#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/quant/quantized_int8.h"
#include "mantissa/weights/packed_data.h"

/// What the packed formats share.
namespace mantissa::quant {

/// The end of an error about weights that are saved in another format, after the mode to choose.
constexpr const char* kOrRestore =
    ", or restore the file's weights to float first (mantissa convert --dequantize)";

// The rows of a weight, which an embedding looks up.

/// Throws index_select()'s error if `weight` lacks one of `rows` (int64 [n]). Sync: none.
/// Errors: also c10::ValueError if the weight is in the memory of the CPU, and `rows` are not.
void check_rows(const PackedData& weight, const at::Tensor& rows);

/// Returns the sizes of `rows` of a weight: [n, sizes[1:]...].
std::vector<int64_t> sizes_of_rows(const at::Tensor& rows, at::IntArrayRef sizes);

/// Returns the rows `rows` (int64 [n]) of 8-bit codes, all of which exist, or all rows: see dequantize_int8().
at::Tensor dequantize_rows_int8(const QuantizedInt8& quantized, const std::optional<at::Tensor>& rows,
                                at::ScalarType dtype);

}  // namespace mantissa::quant
