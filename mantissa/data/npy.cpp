#include "mantissa/data/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read as they are");

using Json = nlohmann::json;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kMaxHeader = 1 << 16, kMaxSizes = 32;

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 9> kDtypes{{{"b1", at::kBool},
                                                                              {"i1", at::kChar},
                                                                              {"u1", at::kByte},
                                                                              {"i2", at::kShort},
                                                                              {"i4", at::kInt},
                                                                              {"i8", at::kLong},
                                                                              {"f2", at::kHalf},
                                                                              {"f4", at::kFloat},
                                                                              {"f8", at::kDouble}}};

/// Returns the header, a literal of Python's such as {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, as
/// JSON.
std::string as_json(std::string_view literal) {
  std::string json;
  bool has_comma = false;  // it is not written yet, because none may stand behind the last element
  for (size_t i = 0; i < literal.size(); ++i) {
    const std::string_view rest = literal.substr(i);
    if (has_comma && std::string_view(" \n").find(rest.front()) == std::string_view::npos) {
      if (std::string_view(")}]").find(rest.front()) == std::string_view::npos) json += ',';
      has_comma = false;
    }
    if (rest.front() == ',') {
      has_comma = true;
      continue;
    }
    if (rest.starts_with("True") || rest.starts_with("False")) {
      const bool is_true = rest.front() == 'T';
      json += is_true ? "true" : "false";
      i += is_true ? 3 : 4;
    } else if (rest.front() == '\'') {
      json += '"';
    } else if (rest.front() == '(' || rest.front() == ')') {
      json += rest.front() == '(' ? '[' : ']';
    } else {
      json += rest.front();
    }
  }
  return json;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

at::ScalarType dtype_of(const Json& descr, const std::string& name) {
  TORCH_CHECK_VALUE(descr.is_string(), "'", name,
                    "' has records of several fields, which are no tensor; save each field by itself");
  const auto text = descr.get<std::string>();
  TORCH_CHECK_VALUE(!text.starts_with('>'), "'", name, "' has numbers in big-endian order, '",
                    fit_for_message(text), "'; convert them with .astype('<", fit_for_message(text.substr(1)),
                    "')");
  for (const auto& [code, dtype] : kDtypes)
    if (text.size() == 3 && (text[0] == '<' || text[0] == '|' || text[0] == '=') && text.substr(1) == code)
      return dtype;
  TORCH_CHECK_VALUE(false, "'", name, "' has the dtype '", fit_for_message(text),
                    "', which libtorch lacks; convert it with .astype(), for example to float32 or int64");
}

/// Returns the number of values; `most` + 1 for more than these.
int64_t count_of(const std::vector<int64_t>& shape, int64_t most) {
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  // Strides are products of the other sizes.
  const int64_t limit = is_empty ? int64_t{1} << 60 : most;
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size == 0) continue;
    if (count > limit / size) return most + 1;
    count *= size;
  }
  return is_empty ? 0 : count;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view bytes, int64_t file_size, const std::string& name) {
  TORCH_CHECK_VALUE(bytes.size() >= 10 && bytes.starts_with(kMagic), "'", name,
                    "' is no .npy file; save the array with numpy.save()");
  const auto version = static_cast<int>(static_cast<unsigned char>(bytes[6]));
  TORCH_CHECK_VALUE(version >= 1 && version <= 3, "'", name, "' has version ", version,
                    " of the format, and versions 1 to 3 are known");
  const size_t digits = version == 1 ? 2 : 4, start = 8 + digits;
  const uint64_t length = bytes.size() < start ? 0 : little_endian(bytes.substr(8, digits));
  TORCH_CHECK_VALUE(length > 0 && length <= kMaxHeader && start + length <= bytes.size(), "'", name,
                    "' has a header that is truncated or too long; save the array again");
  const Json fields = Json::parse(as_json(bytes.substr(start, length)), nullptr, /*allow_exceptions=*/false);
  const bool is_whole = fields.is_object() && fields.contains("descr") && fields.contains("fortran_order") &&
                        fields["fortran_order"].is_boolean() && fields.contains("shape") &&
                        fields["shape"].is_array() && fields["shape"].size() <= kMaxSizes;
  TORCH_CHECK_VALUE(is_whole, "'", name, "' has a damaged header; save the array again");
  NpyHeader header{.dtype = dtype_of(fields["descr"], name),
                   .is_fortran_order = fields["fortran_order"].get<bool>(),
                   .begin = static_cast<int64_t>(start + length)};
  for (const Json& size : fields["shape"]) {
    TORCH_CHECK_VALUE(size.is_number_unsigned() && size.get<uint64_t>() <= uint64_t{1} << 48, "'", name,
                      "' has a damaged shape; save the array again");
    header.shape.push_back(size.get<int64_t>());
  }
  const auto element = static_cast<int64_t>(c10::elementSize(header.dtype));
  const int64_t there = file_size - header.begin, count = count_of(header.shape, there / element);
  TORCH_CHECK_VALUE(count * element == there, "'", name, "' has ", there, " bytes of values, and its shape ",
                    at::IntArrayRef(header.shape), " of ", header.dtype, " needs ",
                    count > there / element ? "more" : std::to_string(count * element),
                    "; the file is truncated or damaged, so save the array again");
  return header;
}

namespace {

std::ifstream open_npy(const std::filesystem::path& path) {
  std::error_code ignored;
  TORCH_CHECK(std::filesystem::is_regular_file(path, ignored), "cannot read '", path.string(),
              "': ", std::filesystem::exists(path, ignored) ? "it is not a regular file" : "no such file",
              "; give a file of numpy.save()");
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  TORCH_CHECK(file, "cannot read '", path.string(), "'; check its permissions");
  return file;
}

/// Parses the header of a file that is at its end.
NpyHeader header_of(std::ifstream& file, const std::filesystem::path& path) {
  const auto size = static_cast<int64_t>(file.tellg());
  std::string bytes(static_cast<size_t>(std::min(size, kMaxHeader + 16)), '\0');
  file.seekg(0).read(bytes.data(), std::ssize(bytes));
  TORCH_CHECK(file, "cannot read '", path.string(), "'; give a file of numpy.save()");
  return parse_npy_header(bytes, size, path.string());
}

}  // namespace

NpyHeader read_npy_header(const std::filesystem::path& path) {
  std::ifstream file = open_npy(path);
  return header_of(file, path);
}

at::Tensor read_npy(const std::filesystem::path& path) {
  std::ifstream file = open_npy(path);
  const NpyHeader header = header_of(file, path);
  std::vector<int64_t> shape = header.shape;
  if (header.is_fortran_order) std::reverse(shape.begin(), shape.end());
  const at::Tensor values = at::empty(shape, at::TensorOptions(header.dtype).device(at::kCPU));
  file.seekg(header.begin)
      .read(static_cast<char*>(values.mutable_data_ptr()), static_cast<int64_t>(values.nbytes()));
  TORCH_CHECK(file, "cannot read '", path.string(), "' to its end; copy it again");
  if (!header.is_fortran_order) return values;
  std::vector<int64_t> order;
  for (int64_t i = values.dim(); i-- > 0;) order.push_back(i);
  return values.permute(order).contiguous();
}

}  // namespace mantissa
