#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// What the header of a .npy file says.
struct NpyHeader {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
  bool is_fortran_order = false;  ///< the first dimension changes fastest
  int64_t begin = 0;              ///< where the values begin
};

/// Parses the header of a file of `file_size` bytes. `bytes` is its beginning: all of the header, or all of the file.
/// Errors: c10::ValueError that begins with `name` for another format or version, a header that is truncated or damaged, a dtype that
///         libtorch lacks, numbers in big-endian order, and for a file that does not end with the last value.
NpyHeader parse_npy_header(std::string_view bytes, int64_t file_size, const std::string& name);

/// Reads the header of a file, and no values.
/// Errors: those of parse_npy_header(); c10::Error if the file cannot be read.
NpyHeader read_npy_header(const std::filesystem::path& path);

/// Reads an array that numpy.save() has written: format versions 1 to 3, in C or Fortran order.
///
/// Shapes: those of the file; the result is contiguous. Dtypes: bool, int8 to int64, uint8, float16 to float64, as in the file.
/// Memory: the tensor; twice that in Fortran order.
/// Errors: those of parse_npy_header(), before memory is allocated; c10::Error if the file cannot be read.
/// Source: NumPy, numpy.lib.format.
at::Tensor read_npy(const std::filesystem::path& path);

}  // namespace mantissa
