#pragma once

// Quantization in blocks, in parallel.

#include <cstdint>

#include <c10/util/FunctionRef.h>

#include "mantissa/fp8/input_internal.h"
#include "mantissa/kernels/fp8.h"

namespace mantissa::fp8 {

struct Tile {
  int64_t rows, cols;
};

/// Calls part(begin, end) in parallel for parts of [0, count), each of which has some microseconds of work.
/// `values` is the number of values that one index stands for.
void for_each_part(int64_t count, int64_t values, c10::function_ref<void(int64_t begin, int64_t end)> part);

/// Adjacent tiles of one row of tiles, which are numbered row by row.
struct Band {
  int64_t row, col, cols;  ///< of values: where it begins, and its width
  int64_t index, count;    ///< of tiles: the first one, and their number
};

/// Calls f(band, numbers) in parallel for bands that make up a matrix. `numbers` has room for one for each tile.
void for_each_band(int64_t rows, int64_t cols, Tile tile,
                   c10::function_ref<void(const Band& band, float* numbers)> f);

/// Quantizes each tile to 8 bits. `to_scales` makes of the amaxes of `count` tiles, from tile `index` on, what their values
/// are multiplied by. Several threads call it.
void quantize_tiles(const Rows& x, Tile tile, kernels::Fp8 format, uint8_t* codes,
                    c10::function_ref<void(float* amaxes, int64_t count, int64_t index)> to_scales);

/// A matrix of codes in memory.
struct CodedMatrix {
  const uint8_t* codes;
  kernels::CodeFormat format;
  int64_t rows, cols;  ///< of values, whole tiles
};

/// Sets `scales` to what the codes of `count` tiles are multiplied by, from tile `index` on. Several threads call it.
using FillScales = c10::function_ref<void(float* scales, int64_t count, int64_t index)>;

/// Restores the values to `out`, in float32 or bfloat16. Returns false if bfloat16 lacks one of them or has it only as a
/// subnormal number: `out` is not filled then.
bool restore_tiles(const CodedMatrix& matrix, Tile tile, FillScales fill_scales, const at::Tensor& out);

/// Throws unless `codes` is a matrix of whole tiles and `scales` has one number for each, side by side in memory, so that
/// none is read past their end. Each byte of `codes` stands for `values_per_byte` values.
/// Errors: c10::ValueError; c10::TypeError for scales that are not `scale_dtype`.
void check_tiles(const at::Tensor& codes, Tile tile, const at::Tensor& scales, at::ScalarType scale_dtype,
                 int64_t values_per_byte = 1);

/// Throws unless `scale` is one float32 on `device`.
void check_one_scale(const at::Tensor& scale, at::Device device);

/// Throws c10::TypeError unless `codes` has one of the FP8 dtypes.
void check_fp8_codes(const at::Tensor& codes);

}  // namespace mantissa::fp8
