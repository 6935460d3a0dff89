#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/formats.h"

namespace mantissa {

/// How quantize_4bit() stores a tensor. The defaults are those of bitsandbytes's quantize_4bit().
struct Quantize4BitOptions {
  Format format = Format::kNF4;  ///< or Format::kFP4
  int64_t blocksize = 64;        ///< values per scale: a power of two from 32 to 4096
  /// Double quantization: the scales are stored in 8 bits, in blocks of 256. With blocks of 64, this saves 0.37
  /// of 4.5 bits per value, and adds some error.
  bool compress_statistics = false;
  /// The dtype of `codes`: uint8, float16, bfloat16 or float32, whose bytes hold the codes. bitsandbytes's
  /// name: sharding libraries need tensors of one dtype.
  at::ScalarType quant_storage = at::kByte;
};

/// A tensor in 4-bit codes, with everything that is needed to restore it: bitsandbytes's packed tensor together
/// with its QuantState.
///
/// Memory: 4 + 32 / blocksize bits per value; with double quantization 4 + 8 / blocksize + 32 / (256 blocksize)
///         bits, plus 4 bytes. A copy shares the tensors.
struct Quantized4Bit {
  at::Tensor codes;          ///< [bytes / itemsize, 1] of the storage dtype, where bytes = (n + 1) / 2
  at::Tensor absmax;         ///< [blocks] float32; uint8 after double quantization
  at::Tensor nested_absmax;  ///< [ceil(blocks / 256)] float32; undefined without double quantization
  at::Tensor nested_map;     ///< [256] float32, the values of the codes in `absmax`; undefined without
  at::Tensor nested_offset;  ///< 0-dim float32, added to each restored scale; undefined without
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;  ///< of the tensor that was quantized
  int64_t blocksize = 64;
  Format format = Format::kNF4;

  bool is_nested() const { return nested_absmax.defined(); }
  int64_t numel() const;
  /// The bytes of `codes` and of all scales. The map of 256 values, which all tensors share, is not counted.
  int64_t nbytes() const;
  at::Device device() const { return codes.device(); }
  /// Returns the same tensor on another device.
  Quantized4Bit to(at::Device device) const;
};

/// The block size of double quantization.
constexpr int64_t kNestedBlocksize = 256;

/// Quantizes a tensor block by block, in row-major order. A block may cross the end of a row.
///
/// Shapes:   any, also empty.
/// Numerics: float32, float16 or bfloat16. absmax is the largest magnitude of a block; the code of a value is
///           the one that nf4_code() or fp4_code() (core/code_tables.h) finds for value * (1 / absmax). The
///           error is at most 0.1520 absmax in NF4 and 0.1667 absmax in FP4. On the CPU the bits depend neither
///           on its instructions nor on the number of threads.
/// Sync:     waits for the device, to check that every value is finite.
/// Errors:   c10::ValueError, which calls the tensor `name`, if it has inf or NaN, or if an option is not one
///           of those above; c10::TypeError for another dtype.
/// Source:   Dettmers et al. 2023, arXiv:2305.14314, section 3.
Quantized4Bit quantize_4bit(const at::Tensor& tensor, const Quantize4BitOptions& options = {},
                            std::string_view name = "the tensor");

/// Returns a tensor of zeros of this shape in 4-bit codes, without quantizing anything: for weights that are loaded
/// next, or on the meta device, for the shapes alone. `dtype` is that of the tensor that was not quantized.
/// Errors: those of check_options().
Quantized4Bit zeros_4bit(at::IntArrayRef shape, at::ScalarType dtype, const Quantize4BitOptions& options,
                         at::Device device);

/// Restores the tensor: code value * absmax in float32, then rounded once to the dtype.
///
/// Errors: c10::TypeError unless `dtype` is float32, float16, bfloat16 or float64; c10::ValueError if there are not as
///         many codes and scales as the shape needs.
at::Tensor dequantize_4bit(const Quantized4Bit& quantized, at::ScalarType dtype);
/// Restores it in the dtype that was quantized.
at::Tensor dequantize_4bit(const Quantized4Bit& quantized);

/// Returns the scales of the blocks: [blocks] float32. After double quantization they are restored:
/// nested_map[code] * nested_absmax[block / 256] + nested_offset, each rounded to float32.
/// Errors: after double quantization, c10::ValueError as for dequantize_4bit().
at::Tensor absmax_of(const Quantized4Bit& quantized);

/// Checks what quantize_4bit() would check about the options: for programs that want to fail before they begin.
/// Errors: c10::ValueError.
void check_options(const Quantize4BitOptions& options);

}  // namespace mantissa
