#include "mantissa/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <ostream>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

using nlohmann::json;

/// In the order of the reference implementation's enumeration, which is the reverse of the order of writing.
constexpr std::array<std::pair<std::string_view, at::ScalarType>, 17> kDtypes{{
    {"BOOL", at::kBool},
    {"U8", at::kByte},
    {"I8", at::kChar},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
    {"I16", at::kShort},
    {"U16", at::kUInt16},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I32", at::kInt},
    {"U32", at::kUInt32},
    {"F32", at::kFloat},
    {"C64", at::kComplexFloat},
    {"F64", at::kDouble},
    {"I64", at::kLong},
    {"U64", at::kUInt64},
}};

constexpr const char* kMetadata = "__metadata__";

size_t rank(at::ScalarType dtype) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](auto& row) { return row.second == dtype; });
  return size_t(found - kDtypes.begin());
}

/// The place of an error. Every check through it means a damaged file, for which there is one cure.
struct TensorPlace {
  const std::string& file;
  std::string tensor;

  template <typename... Args>
  void require(bool condition, const Args&... what) const {
    TORCH_CHECK_VALUE(condition, "safetensors file '", file, "'", tensor.empty() ? "" : ", tensor '", tensor,
                      tensor.empty() ? "" : "'", ": ", what..., "; get the file again from its source");
  }
};

uint64_t unsigned_of(const json& value, const TensorPlace& place, const char* field) {
  if (!value.is_number_unsigned()) {
    place.require(false, field, " must hold whole numbers from 0 to 2^64 - 1, but holds ",
                  fit_for_message(value.dump(-1, ' ', true, json::error_handler_t::replace)));
  }
  return value.get<uint64_t>();
}

/// Returns the bytes of a tensor. Every product is checked, including those that at::empty uses for its
/// strides, where a dimension of 0 does not make the others harmless.
uint64_t bytes_of(const std::vector<int64_t>& shape, at::ScalarType dtype, const TensorPlace& place) {
  int64_t strides = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    empty |= size == 0;
    place.require(!__builtin_mul_overflow(strides, std::max<int64_t>(size, 1), &strides),
                  "the product of its shape overflows 64 bits");
  }
  int64_t bytes = 0;
  place.require(!__builtin_mul_overflow(strides, int64_t(c10::elementSize(dtype)), &bytes),
                "its size in bytes overflows 64 bits");
  return empty ? 0 : uint64_t(bytes);
}

SafetensorsEntry parse_entry(const json& value, const TensorPlace& place) {
  place.require(value.is_object(),
                "its entry in the header must be an object of dtype, shape and data_offsets");
  for (const auto& [key, unused] : value.items()) {
    place.require(key == "dtype" || key == "shape" || key == "data_offsets", "unknown field '",
                  fit_for_message(key), "'");
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    place.require(value.contains(key), "the field '", key, "' is missing");
  }
  SafetensorsEntry entry;
  const json& dtype = value["dtype"];
  place.require(dtype.is_string(), "dtype must be a string");
  const auto known = safetensors_dtype(dtype.get_ref<const std::string&>());
  TORCH_CHECK_VALUE(known.has_value(), "safetensors file '", place.file, "', tensor '", place.tensor,
                    "': dtype '", fit_for_message(dtype.get_ref<const std::string&>()),
                    "' is not one that libtorch can hold; convert the file where it was made");
  entry.dtype = *known;
  const json& shape = value["shape"];
  place.require(shape.is_array(), "shape must be a list of whole numbers");
  // libtorch's own iterators support at most 64 dimensions.
  place.require(shape.size() <= 64, "a shape of ", shape.size(), " dimensions is more than libtorch's 64");
  for (const json& size : shape) {
    const uint64_t n = unsigned_of(size, place, "shape");
    place.require(n <= uint64_t(std::numeric_limits<int64_t>::max()), "a size of ", n, " overflows 63 bits");
    entry.shape.push_back(int64_t(n));
  }
  const json& offsets = value["data_offsets"];
  place.require(offsets.is_array() && offsets.size() == 2, "data_offsets must be a list of begin and end");
  entry.begin = unsigned_of(offsets[0], place, "data_offsets");
  entry.end = unsigned_of(offsets[1], place, "data_offsets");
  place.require(entry.begin <= entry.end, "data_offsets end at ", entry.end, ", before they begin at ",
                entry.begin);
  const uint64_t bytes = bytes_of(entry.shape, entry.dtype, place);
  place.require(entry.end - entry.begin == bytes, "dtype and shape make ", bytes,
                " bytes, but data_offsets hold ", entry.end - entry.begin);
  return entry;
}

/// Checks that the tensors cover every byte of the data exactly once.
void check_cover(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& file) {
  std::vector<std::tuple<uint64_t, uint64_t, std::string_view>> spans;
  spans.reserve(header.tensors.size());
  for (const auto& [name, entry] : header.tensors) spans.emplace_back(entry.begin, entry.end, name);
  std::sort(spans.begin(), spans.end());
  uint64_t expected = 0;
  for (const auto& [begin, end, name] : spans) expected = std::max(expected, end);
  // Checked before holes and overlaps: a truncated file is the common case and deserves its own message.
  TensorPlace{file, ""}.require(data_bytes >= expected, "it is truncated: its header promises ", expected,
                                " bytes of tensors, but only ", data_bytes, " are there");
  uint64_t at = 0;
  for (const auto& [begin, end, name] : spans) {
    const TensorPlace place{file, fit_for_message(std::string(name))};
    place.require(begin >= at, "its bytes from ", begin, " overlap those of another tensor, which end at ",
                  at);
    place.require(begin == at, "the ", begin - at, " bytes before it, from ", at, ", belong to no tensor");
    at = end;
  }
  TensorPlace{file, ""}.require(data_bytes == at, data_bytes - at,
                                " bytes after the last tensor belong to no tensor");
}

}  // namespace

std::optional<std::string_view> safetensors_dtype_name(at::ScalarType dtype) {
  const size_t row = rank(dtype);
  return row < kDtypes.size() ? std::optional(kDtypes[row].first) : std::nullopt;
}

std::optional<at::ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& [known, dtype] : kDtypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::string& file) {
  const TensorPlace whole{file, ""};
  // The format reserves the first byte, so no white space may precede the brace.
  whole.require(!text.empty() && text.front() == '{',
                "its header does not begin with '{', so it is not a safetensors file");
  const json root =
      parse_json(text, 8, [&](const std::string& what) { whole.require(false, "its header ", what); });
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name != kMetadata) {
      header.tensors.emplace(name, parse_entry(value, {file, fit_for_message(name)}));
      continue;
    }
    whole.require(value.is_object(), "__metadata__ must be an object of strings");
    for (const auto& [key, text_value] : value.items()) {
      whole.require(text_value.is_string(), "the metadata '", fit_for_message(key), "' must be a string");
      header.metadata.emplace(key, text_value.get<std::string>());
    }
  }
  check_cover(header, data_bytes, file);
  return header;
}

std::string make_safetensors_header(SafetensorsHeader& header, std::vector<std::string>& order) {
  const std::string file = "being written";
  order.clear();
  for (const auto& [name, entry] : header.tensors) {
    TORCH_CHECK_VALUE(name != kMetadata, "save_safetensors: a tensor cannot be named '", kMetadata,
                      "', which the format keeps for itself; rename it");
    TORCH_CHECK_VALUE(safetensors_dtype_name(entry.dtype).has_value(), "save_safetensors: tensor '", name,
                      "' is ", c10::toString(entry.dtype),
                      ", which safetensors has no name for; convert it first");
    order.push_back(name);
  }
  // The map is already sorted by name, and the stable sort keeps that order among equal dtypes.
  std::stable_sort(order.begin(), order.end(), [&](const std::string& a, const std::string& b) {
    return rank(header.tensors.at(a).dtype) > rank(header.tensors.at(b).dtype);
  });

  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) root[kMetadata] = header.metadata;
  uint64_t offset = 0;
  for (const std::string& name : order) {
    SafetensorsEntry& entry = header.tensors.at(name);
    entry.begin = offset;
    entry.end = offset += bytes_of(entry.shape, entry.dtype, {file, name});
    // ordered_json looks up a key by walking through all of them; these names are known to be unique.
    nlohmann::ordered_json fields = nlohmann::ordered_json::object();
    fields["dtype"] = *safetensors_dtype_name(entry.dtype);
    fields["shape"] = entry.shape;
    fields["data_offsets"] = {entry.begin, entry.end};
    root.get_ref<nlohmann::ordered_json::object_t&>().push_back({name, std::move(fields)});
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const json::exception&) {
    TORCH_CHECK_VALUE(false,
                      "save_safetensors: a tensor's name or a metadata text is not valid UTF-8, which JSON "
                      "cannot hold; rename it");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  TORCH_CHECK_VALUE(text.size() <= kSafetensorsMaxHeaderBytes, "save_safetensors: a header of ", text.size(),
                    " bytes is over the format's limit of ", kSafetensorsMaxHeaderBytes,
                    "; shorten the metadata or write several files");
  return text;
}

void write_safetensors_header(std::ostream& stream, std::string_view json) {
  const uint64_t length = json.size();
  stream.write(reinterpret_cast<const char*>(&length), sizeof length);
  stream.write(json.data(), std::streamsize(json.size()));
}

}  // namespace mantissa
