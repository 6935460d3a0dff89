#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace mantissa {

/// One tensor as a safetensors header lists it.
/// Units: bytes, counted from the end of the header.
struct SafetensorsEntry {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// The header of a safetensors file.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Longer headers are refused, as by the reference implementation.
/// Units: bytes.
inline constexpr uint64_t kSafetensorsMaxHeaderBytes = 100'000'000;

/// Returns "F32" for at::kFloat; nothing for a dtype that the format does not name (complex128, quantized
/// types).
std::optional<std::string_view> safetensors_dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

/// Reads and checks the JSON header of a file that has `data_bytes` of tensor data after it. Everything is
/// checked, so that a caller may allocate and read what the result says.
///
/// `file` is the file's name in errors.
/// Errors: c10::ValueError naming the file, the tensor and the problem: no JSON, a repeated name, a field
///         that is missing or of a wrong type, an unknown dtype, a shape that overflows or does not fit its
///         bytes, holes between tensors, tensors that overlap, missing bytes (truncated) or bytes left over.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file);

/// Lays out `tensors` in the order of the reference implementation (widest dtype first, then by name), which
/// it puts into `order`. It fills in their offsets and returns the JSON, padded with spaces so that the data
/// start at a multiple of 8.
/// Errors: c10::ValueError for a dtype that the format lacks, a name or metadata that is not UTF-8, or a
///         tensor named "__metadata__".
std::string make_safetensors_header(SafetensorsHeader& header, std::vector<std::string>& order);

/// Writes the part before the data: the JSON's length in 8 bytes, little-endian, and the JSON.
void write_safetensors_header(std::ostream& stream, std::string_view json);

}  // namespace mantissa
