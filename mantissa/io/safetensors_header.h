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
/// Units: `begin` and `end` are bytes, counted from the end of the header.
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

/// The longest header that is accepted, as in the reference implementation.
/// Units: bytes.
inline constexpr uint64_t kSafetensorsMaxHeaderBytes = 100'000'000;

/// Returns "F32" for at::kFloat; nothing for a dtype that the format does not name (complex128, quantized
/// types).
std::optional<std::string_view> safetensors_dtype_name(at::ScalarType dtype);
/// Returns at::kFloat for "F32"; nothing for a name that libtorch has no dtype for.
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

/// Parses the JSON header of a file that contains `data_bytes` of tensor data after the header. Everything is
/// checked, so that a caller can allocate and read memory as the result says.
///
/// `file` is the file's name for error messages.
/// Errors: c10::ValueError naming the file, the tensor and the problem: no JSON, a repeated name, a field
///         that is missing or of a wrong type, an unknown dtype, a shape that overflows or does not fit its
///         bytes, holes between tensors, tensors that overlap, missing bytes (truncated) or bytes left over.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& file);

/// Assigns a place in the file to each tensor of `header` and fills in its `begin` and `end`. The order is
/// that of the reference implementation: widest dtype first, then by name. `order` receives the names in this
/// order. Returns the JSON, padded with spaces so that the data start at a multiple of 8 bytes.
/// Errors: c10::ValueError for a dtype that the format lacks, a name or metadata that is not UTF-8, or a
///         tensor named "__metadata__".
std::string make_safetensors_header(SafetensorsHeader& header, std::vector<std::string>& order);

/// Writes the part of the file before the data: the length of the JSON in 8 bytes, little-endian, then the
/// JSON.
void write_safetensors_header(std::ostream& stream, std::string_view json);

}  // namespace mantissa
