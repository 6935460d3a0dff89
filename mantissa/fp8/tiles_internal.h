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

/// Returns the magnitudes of tile (`band`, `col`), counted in tiles.
kernels::Magnitudes magnitudes_of(const Rows& x, Tile tile, int64_t band, int64_t col);

/// Quantizes each tile to 8 bits by the scale that `scale_of` returns for its amax and its index. Tiles are numbered
/// row by row, and several threads call `scale_of`.
void quantize_tiles(const Rows& x, Tile tile, kernels::Fp8 format, uint8_t* codes,
                    c10::function_ref<float(float amax, int64_t index)> scale_of);

/// Throws unless `codes` is a matrix of whole tiles and `scales` has one number for each, side by side in memory, so that
/// none is read past their end. Each byte of `codes` stands for `values_per_byte` values.
/// Errors: c10::ValueError; c10::TypeError for scales that are not `scale_dtype`.
void check_tiles(const at::Tensor& codes, Tile tile, const at::Tensor& scales, at::ScalarType scale_dtype,
                 int64_t values_per_byte = 1);

/// Throws unless `scale` is one float32 on the CPU.
void check_one_scale(const at::Tensor& scale);

/// Throws c10::TypeError unless `codes` has one of the FP8 dtypes.
void check_fp8_codes(const at::Tensor& codes);

/// Restores codes in float32, and rounds once to `dtype`; `scale_inv_of` takes a tile's index.
at::Tensor dequantize_tiles(const at::Tensor& codes, Tile tile, at::ScalarType dtype,
                            c10::function_ref<float(int64_t index)> scale_inv_of);

}  // namespace mantissa::fp8
