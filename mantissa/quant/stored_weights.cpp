#include "mantissa/quant/stored_weights.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "mantissa/core/suggest.h"
#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/quant_state.h"

namespace mantissa {
namespace {

constexpr std::string_view kState4Bit = ".quant_state.bitsandbytes__", kScales8Bit = "SCB";

/// Returns the name of the 8-bit weight whose scales have the name `scales`, or "" if there is none.
std::string weight_of_scales(const std::string& scales, const std::set<std::string>& names) {
  if (scales != kScales8Bit && !scales.ends_with(".SCB")) return "";
  const std::string prefix = scales.substr(0, scales.size() - kScales8Bit.size());  // "fc." or ""
  // A parameter that is not called "weight" has them below its own name.
  for (const std::string& name : {prefix + "weight", prefix.substr(0, prefix.size() - !prefix.empty())})
    if (names.contains(name)) return name;
  return "";
}

/// Takes the tensors of a weight out of `tensors`; `state` has their names.
void erase_all(std::map<std::string, at::Tensor>& tensors, const std::map<std::string, at::Tensor>& state) {
  for (const auto& [name, part] : state) tensors.erase(name);
}

}  // namespace

std::vector<std::string> quantized_weights_of(const std::vector<std::string>& names) {
  const std::set<std::string> all(names.begin(), names.end());
  std::set<std::string> found;
  for (const std::string& name : all) {
    if (const size_t at = name.find(kState4Bit); at != std::string::npos) found.insert(name.substr(0, at));
    if (const std::string weight = weight_of_scales(name, all); !weight.empty()) found.insert(weight);
  }
  return {found.begin(), found.end()};
}

std::map<std::string, at::Tensor> dequantize_stored(std::map<std::string, at::Tensor> tensors,
                                                    at::ScalarType dtype) {
  for (const std::string& name : quantized_weights_of(keys_of(tensors))) {
    at::Tensor values;
    if (has_state_4bit(tensors, name)) {
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
  return tensors;
}

std::map<std::string, std::vector<int64_t>> stored_shapes(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, at::Tensor> others = tensors;
  for (const std::string& name : quantized_weights_of(keys_of(tensors))) {
    if (has_state_4bit(tensors, name)) {
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
