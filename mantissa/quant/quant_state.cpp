#include "mantissa/quant/quant_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/irange.h>

#include "mantissa/core/formats.h"
#include "mantissa/core/suggest.h"
#include "mantissa/quant/operations_4bit_internal.h"
#include "mantissa/quant/quant_state_json_internal.h"
#include "mantissa/quant/quantized_4bit_internal.h"

namespace mantissa {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

constexpr std::string_view kPacked = "quant_state.bitsandbytes__";
const std::vector<std::string> kComponents = {"absmax", "quant_map", "nested_absmax", "nested_quant_map"};

std::string dtype_name(at::ScalarType dtype) {
  const auto format = format_of(dtype);
  return std::string(info(*format).name);
}

at::Tensor bytes_of_text(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

/// Returns the 4-bit format that a state calls `type`.
std::optional<Format> format_named(const std::string& type) {
  for (const Format format : {Format::kNF4, Format::kFP4})
    if (type == info(format).name) return format;
  return std::nullopt;
}

/// The components of one weight, by name without the weight's own name.
struct Components {
  std::string name;
  Tensors tensors;
  std::string packed_as;  // the name of the tensor with the JSON
  std::string quant_type;

  const at::Tensor& at(const std::string& component) const {
    const auto found = tensors.find(component);
    TORCH_CHECK_VALUE(found != tensors.end(), "unpack_state_4bit: there is no tensor '", name, ".", component,
                      "'; the state of '", name, "' is not complete: save it again");
    return found->second;
  }
};

Components components_of(const Tensors& tensors, const std::string& name) {
  Components result{name, {}, {}, {}};
  const std::string prefix = name + ".";
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it) {
    const std::string last = it->first.substr(prefix.size());
    if (last.starts_with(kPacked)) {
      TORCH_CHECK_VALUE(result.packed_as.empty(), "unpack_state_4bit: '", name, "' has two states, '",
                        result.packed_as, "' and '", it->first, "'; remove the one that is not its own");
      result.packed_as = it->first;
      result.quant_type = last.substr(kPacked.size());
      TORCH_CHECK_VALUE(format_named(result.quant_type), "unpack_state_4bit: '", it->first,
                        "' is the state of an unknown type; it has to end in bitsandbytes__nf4 or "
                        "bitsandbytes__fp4");
      continue;
    }
    TORCH_CHECK_VALUE(std::find(kComponents.begin(), kComponents.end(), last) != kComponents.end(),
                      "unpack_state_4bit: '", it->first, "' is no component of a 4-bit weight",
                      did_you_mean(last, kComponents), "; remove it, or give it another name");
    result.tensors.emplace(last, it->second);
  }
  TORCH_CHECK_VALUE(!result.packed_as.empty(), "unpack_state_4bit: there is no '", name,
                    ".quant_state.bitsandbytes__nf4' (or __fp4); '", name, "' is not saved in 4 bits");
  return result;
}

quant::QuantStateJson json_of(const at::Tensor& packed, const std::string& name) {
  TORCH_CHECK_VALUE(packed.scalar_type() == at::kByte && packed.dim() == 1, "unpack_state_4bit: '", name,
                    "' has dtype ", packed.scalar_type(), " and shape ", packed.sizes(),
                    "; it has to be JSON as uint8 [bytes]");
  const at::Tensor bytes = packed.cpu().contiguous();
  const std::string_view text(reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()),
                              static_cast<size_t>(bytes.numel()));
  return quant::parse_quant_state_json(text, "unpack_state_4bit: '" + name + "'");
}

/// Returns a component that has `count` elements in one dimension.
at::Tensor component(const Components& from, const std::string& which, at::ScalarType dtype, int64_t count) {
  const at::Tensor& tensor = from.at(which);
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype && tensor.numel() == count, "unpack_state_4bit: '",
                    from.name, ".", which, "' has dtype ", tensor.scalar_type(), " and ", tensor.numel(),
                    " elements; the weight's shape and block size need ", dtype, " and ", count,
                    ": the state is not that of this weight");
  TORCH_CHECK_VALUE(!tensor.is_floating_point() || tensor.isfinite().all().item<bool>(),
                    "unpack_state_4bit: '", from.name, ".", which,
                    "' has inf or nan; the file is damaged, or the weight was not finite");
  return tensor.detach().reshape({count}).contiguous();
}

/// The number of elements, or nothing if it does not fit in 63 bits.
std::optional<int64_t> elements_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape)
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
  return count;
}

/// Checks that the codes are as many as the shape needs, and returns them.
at::Tensor checked_codes(const Tensors& tensors, const std::string& name, const std::vector<int64_t>& shape) {
  const auto found = tensors.find(name);
  TORCH_CHECK_VALUE(found != tensors.end(), "unpack_state_4bit: there is a state of '", name,
                    "', but no tensor of that name; save the weight again");
  const at::Tensor codes = found->second.detach();
  const at::ScalarType dtype = codes.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kByte || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat,
                   "unpack_state_4bit: '", name, "' has dtype ", dtype,
                   "; codes are stored as uint8, float16, bfloat16 or float32");
  const auto count = elements_of(shape);
  const auto bytes = static_cast<int64_t>(codes.nbytes());
  TORCH_CHECK_VALUE(count && bytes == *count / 2 + *count % 2, "unpack_state_4bit: '", name, "' has ", bytes,
                    " bytes of codes, but its state is that of a tensor of shape ", at::IntArrayRef(shape),
                    "; the file is damaged, or the state belongs to another weight");
  return codes.contiguous().view({-1, 1});
}

at::ScalarType checked_dtype(const std::string& dtype, const std::string& name) {
  for (const auto each : {at::kFloat, at::kHalf, at::kBFloat16})
    if (dtype == dtype_name(each)) return each;
  TORCH_CHECK_VALUE(false, "unpack_state_4bit: '", name, "' was quantized from dtype '", dtype,
                    "'; it has to be float32, float16 or bfloat16");
}

void unpack_nested(const Components& from, const quant::QuantStateJson::Nested& json, int64_t blocks,
                   Quantized4Bit& result) {
  TORCH_CHECK_VALUE(json.blocksize == kNestedBlocksize && json.dtype == "float32", "unpack_state_4bit: '",
                    from.name, "' has nested blocks of ", json.blocksize, " values of ", json.dtype,
                    "; only blocks of 256 values of float32 can be read");
  const auto offset = static_cast<float>(json.offset);
  TORCH_CHECK_VALUE(std::isfinite(offset), "unpack_state_4bit: nested_offset of '", from.name,
                    "' is beyond the range of float32; the file is damaged");
  result.absmax = component(from, "absmax", at::kByte, blocks);
  result.nested_absmax =
      component(from, "nested_absmax", at::kFloat, (blocks + kNestedBlocksize - 1) / kNestedBlocksize);
  result.nested_map = component(from, "nested_quant_map", at::kFloat, 256);
  // The map's generator rounds differently on other machines; the file's own map is the one that counts.
  const at::Tensor map = quant::dynamic_map(result.nested_map.device());
  TORCH_CHECK_VALUE(
      ((result.nested_map - map).abs() <= map.abs() * 0x1p-20).all().item<bool>(), "unpack_state_4bit: '",
      from.name,
      ".nested_quant_map' is not the signed dynamic map of bitsandbytes; other maps cannot be read");
  if (at::equal(result.nested_map, map)) result.nested_map = map;
  result.nested_offset = at::full({}, offset, result.nested_absmax.options());
}

}  // namespace

std::map<std::string, at::Tensor> pack_state(const Quantized4Bit& quantized, const std::string& name) {
  quant::QuantStateJson json;
  json.quant_type = info(quantized.format).name;
  json.blocksize = quantized.blocksize;
  json.dtype = dtype_name(quantized.dtype);
  json.shape = quantized.shape;
  Tensors result = {{name, quantized.codes},
                    {name + ".absmax", quantized.absmax},
                    {name + ".quant_map", quant::table_4bit(quantized.format, quantized.device())}};
  if (quantized.is_nested()) {
    json.nested = {kNestedBlocksize, "float32", quantized.nested_offset.item<float>()};
    result.emplace(name + ".nested_absmax", quantized.nested_absmax);
    result.emplace(name + ".nested_quant_map", quantized.nested_map.clone());
  }
  result.emplace(name + "." + std::string(kPacked) + json.quant_type,
                 bytes_of_text(quant::to_json(json)).to(quantized.device()));
  return result;
}

bool has_state_4bit(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  const std::string prefix = name + ".";
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it) {
    const std::string last = it->first.substr(prefix.size());
    const bool is_component = std::find(kComponents.begin(), kComponents.end(), last) != kComponents.end();
    if (is_component || last.starts_with(kPacked)) return true;
  }
  return false;
}

QuantStateInfo read_quant_state(const at::Tensor& json_bytes, const std::string& name) {
  const quant::QuantStateJson json = json_of(json_bytes, name);
  const std::string type = name.substr(std::min(name.size(), name.rfind("__") + 2));
  TORCH_CHECK_VALUE(json.quant_type == type && format_named(type), "unpack_state_4bit: '", name,
                    "' says that its type is '", json.quant_type,
                    "'; it has to be nf4 or fp4, and the two "
                    "have to agree");
  QuantStateInfo result{*format_named(type), json.shape, checked_dtype(json.dtype, name), json.blocksize,
                        json.nested.has_value()};
  check_options({.format = result.format, .blocksize = result.blocksize});
  TORCH_CHECK_VALUE(elements_of(json.shape), "unpack_state_4bit: '", name,
                    "' is the state of a tensor of shape ", at::IntArrayRef(json.shape),
                    ", which no memory holds; the file is damaged");
  return result;
}

std::string weight_of_component_4bit(const std::string& name) {
  if (const size_t at = name.rfind("." + std::string(kPacked)); at != std::string::npos)
    return name.substr(0, at);
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {};
  const bool is_component =
      std::find(kComponents.begin(), kComponents.end(), name.substr(dot + 1)) != kComponents.end();
  return is_component ? name.substr(0, dot) : std::string();
}

Quantized4Bit unpack_state_4bit(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  const Components from = components_of(tensors, name);
  const quant::QuantStateJson json = json_of(tensors.at(from.packed_as), from.packed_as);
  TORCH_CHECK_VALUE(json.quant_type == from.quant_type, "unpack_state_4bit: '", from.packed_as,
                    "' says that its type is '", json.quant_type, "'; the two have to agree");
  Quantized4Bit result;
  result.format = *format_named(from.quant_type);
  result.shape = json.shape;
  result.blocksize = json.blocksize;
  result.dtype = checked_dtype(json.dtype, from.packed_as);
  check_options({.format = result.format, .blocksize = result.blocksize});
  result.codes = checked_codes(tensors, name, json.shape);

  const at::Tensor table = component(from, "quant_map", at::kFloat, 16);
  TORCH_CHECK_VALUE(at::equal(table, quant::table_4bit(result.format, table.device())),
                    "unpack_state_4bit: '", name, ".quant_map' is not the table of ", json.quant_type,
                    "; weights with a table of their own cannot be read");
  const int64_t count = result.numel(), blocks = count / result.blocksize + (count % result.blocksize != 0);
  const bool has_nested_tensors =
      from.tensors.contains("nested_absmax") || from.tensors.contains("nested_quant_map");
  TORCH_CHECK_VALUE(has_nested_tensors == json.nested.has_value(), "unpack_state_4bit: of '", name,
                    "', the JSON and the tensors disagree about double quantization; save the weight again");
  if (json.nested) {
    unpack_nested(from, *json.nested, blocks, result);
  } else {
    result.absmax = component(from, "absmax", at::kFloat, blocks);
  }
  for (const auto& [which, tensor] : from.tensors)
    TORCH_CHECK_VALUE(tensor.device() == result.device(), "unpack_state_4bit: '", name, ".", which,
                      "' is on ", tensor.device(), ", and '", name, "' is on ", result.device(),
                      "; move one of them");
  return result;
}

}  // namespace mantissa
