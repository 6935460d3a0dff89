#include "mantissa/quant/stored_weights.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/quant/stored_fp8.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

constexpr std::string_view kState4Bit = ".quant_state.bitsandbytes__", kScales8Bit = "SCB",
                           kFormat8Bit = "weight_format";

bool is_last_part(const std::string& name, std::string_view part) {
  return name.ends_with(part) && (name.size() == part.size() || name[name.size() - part.size() - 1] == '.');
}

/// Returns the name of the 8-bit weight whose scales have the name `scales`, or "" if there is none. `is_weight` says
/// whether there is a weight of a name.
template <typename IsWeight>
std::string weight_of_scales(const std::string& scales, const IsWeight& is_weight) {
  if (!is_last_part(scales, kScales8Bit)) return "";
  const std::string prefix = scales.substr(0, scales.size() - kScales8Bit.size());  // "fc." or ""
  // A parameter that is not called "weight" has them below its own name.
  for (const std::string& name : {prefix + "weight", prefix.substr(0, prefix.size() - !prefix.empty())})
    if (is_weight(name)) return name;
  return "";
}

/// Otherwise codes without scales would be taken for a model's own integers.
void check_scales_of_int8(const std::map<std::string, at::ScalarType>& dtypes,
                          const std::map<std::string, StoredWeight>& found) {
  for (const auto& [name, dtype] : dtypes) {
    if (!is_last_part(name, kFormat8Bit)) continue;
    const std::string prefix = name.substr(0, name.size() - kFormat8Bit.size());
    const auto weight = dtypes.find(prefix + "weight");
    TORCH_CHECK_VALUE(weight == dtypes.end() || weight->second != at::kChar || found.contains(weight->first),
                      "'", prefix, "weight' is an int8 weight, and its scales, '", prefix,
                      "SCB', are missing; save the model again");
  }
}

std::map<std::string, at::ScalarType> dtypes_of(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::ScalarType> dtypes;
  for (const auto& [name, tensor] : tensors) dtypes.emplace(name, tensor.scalar_type());
  return dtypes;
}

/// Takes the tensors of a weight out of `tensors`; `state` has their names.
void erase_all(std::map<std::string, at::Tensor>& tensors, const std::map<std::string, at::Tensor>& state) {
  for (const auto& [name, part] : state) tensors.erase(name);
}

/// Replaces what a weight consists of by its values.
void dequantize_one(std::map<std::string, at::Tensor>& tensors, const std::string& name,
                    at::ScalarType dtype) {
  at::Tensor values;
  const auto dtypes = dtypes_of(tensors);
  if (is_stored_fp8(dtypes, name)) {
    values = dequantize_stored_fp8(tensors, name, dtype);
    for (const std::string& part : stored_fp8_parts(dtypes, name)) tensors.erase(part);
  } else if (has_state_4bit(tensors, name)) {
    const Quantized4Bit weight = unpack_state_4bit(tensors, name);
    values = dequantize_4bit(weight, dtype);
    erase_all(tensors, pack_state(weight, name));
  } else {
    const QuantizedInt8 weight = unpack_state_int8(tensors, name);
    values = dequantize_int8(weight, dtype).view(tensors.at(name).sizes());
    erase_all(tensors, pack_state(weight, name));
  }
  tensors.insert_or_assign(name, std::move(values));
}

}  // namespace

std::map<std::string, StoredWeight> find_stored_weights(const std::map<std::string, at::ScalarType>& dtypes) {
  const auto is_int8 = [&](const std::string& name) {
    const auto weight = dtypes.find(name);
    return weight != dtypes.end() && weight->second == at::kChar;
  };
  std::map<std::string, StoredWeight> found;
  for (const auto& [name, dtype] : dtypes) {
    if (const std::string weight = weight_of_scales(name, is_int8); !weight.empty()) {
      const std::string format = name.substr(0, name.size() - kScales8Bit.size()) + std::string(kFormat8Bit);
      found[weight] = {.is_int8 = true, .tensors = {weight, name}, .json = ""};
      if (dtypes.contains(format)) found[weight].tensors.push_back(format);
    }
    if (is_stored_fp8(dtypes, name)) {
      found[name] = {.is_fp8 = true, .tensors = stored_fp8_parts(dtypes, name), .json = ""};
      continue;
    }
    const std::string weight = weight_of_component_4bit(name);
    const bool is_json = name.find(kState4Bit) != std::string::npos;
    // A model may have a parameter of such a name that is none of a quantized weight's.
    if (weight.empty() || (!is_json && !dtypes.contains(weight))) continue;
    StoredWeight& stored = found[weight];
    if (stored.tensors.empty()) stored.tensors = {weight};
    stored.tensors.push_back(name);
    if (is_json) stored.json = name;
  }
  check_scales_of_int8(dtypes, found);
  return found;
}

Format format_of(const StoredWeight& weight) {
  if (weight.is_fp8) return Format::kFloat8E4M3;
  if (weight.is_int8) return Format::kInt8;
  return weight.json.ends_with(info(Format::kFP4).name) ? Format::kFP4 : Format::kNF4;
}

std::vector<std::string> quantized_weights_of(const std::map<std::string, at::ScalarType>& dtypes) {
  std::vector<std::string> names;
  for (const auto& [name, weight] : find_stored_weights(dtypes))
    if (weight.is_int8 || weight.is_fp8 || !weight.json.empty()) names.push_back(name);
  return names;
}

std::vector<std::string> quantized_weights_of(const std::map<std::string, at::Tensor>& tensors) {
  return quantized_weights_of(dtypes_of(tensors));
}

std::map<std::string, at::Tensor> dequantize_stored(std::map<std::string, at::Tensor> tensors,
                                                    at::ScalarType dtype) {
  for (const std::string& name : quantized_weights_of(tensors)) dequantize_one(tensors, name, dtype);
  return tensors;
}

bool is_stored_as(const at::Tensor& own, const std::string& name,
                  const std::map<std::string, at::Tensor>& tensors) {
  const auto state = packed_data(own)->state(name);
  const bool is_fp8 = is_stored_fp8(dtypes_of(state), name);
  const bool has_all = std::all_of(state.begin(), state.end(), [&](const auto& part) {
    const auto found = tensors.find(part.first);
    return found != tensors.end() && found->second.scalar_type() == part.second.scalar_type() &&
           (!is_fp8 || found->second.sizes() == part.second.sizes());
  });
  return has_all && (!is_fp8 || stored_fp8_parts(dtypes_of(tensors), name).size() == state.size());
}

namespace {

/// Whether the model keeps the codes of a weight as they are stored.
bool keeps_codes(const at::Tensor& own, const std::string& name,
                 const std::map<std::string, at::Tensor>& tensors) {
  if (!is_packed(own)) return false;
  const bool is_fp8 = is_stored_fp8(dtypes_of(tensors), name) &&
                      is_stored_fp8(dtypes_of(packed_data(own)->state(name)), name);
  return !is_fp8 || is_stored_as(own, name, tensors);
}

}  // namespace

std::map<std::string, at::Tensor> dequantize_plain(std::map<std::string, at::Tensor> tensors,
                                                   const std::map<std::string, at::Tensor>& own,
                                                   at::ScalarType dtype) {
  for (const std::string& name : quantized_weights_of(tensors)) {
    const auto weight = own.find(name);
    if (weight == own.end() || !keeps_codes(base_weight(weight->second), name, tensors))
      dequantize_one(tensors, name, dtype);
  }
  return tensors;
}

std::map<std::string, std::vector<int64_t>> stored_shapes(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, at::Tensor> others = tensors;
  for (const std::string& name : quantized_weights_of(tensors)) {
    if (is_stored_fp8(dtypes_of(tensors), name)) {
      shapes[name] = tensors.at(name).sizes().vec();
      for (const std::string& part : stored_fp8_parts(dtypes_of(tensors), name)) others.erase(part);
    } else if (has_state_4bit(tensors, name)) {
      const Quantized4Bit weight = unpack_state_4bit(tensors, name);
      shapes[name] = weight.shape;
      erase_all(others, pack_state(weight, name));
    } else {
      shapes[name] = tensors.at(name).sizes().vec();
      erase_all(others, pack_state(unpack_state_int8(tensors, name), name));
    }
  }
  for (const auto& [name, tensor] : others) shapes[name] = tensor.sizes().vec();
  return shapes;
}

}  // namespace mantissa
