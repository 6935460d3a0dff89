#include "mantissa/precision/quantize_module.h"

#include <set>
#include <unordered_set>
#include <utility>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include "mantissa/precision/layers_internal.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/packed_int8.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa {
namespace {

using torch::nn::Module;

LayerChoice choice_of(const QuantizeModuleOptions& options) {
  return {options.embeddings, options.convolutions, options.ignore_modules};
}

/// Returns the layers whose weights are quantized.
std::vector<Layer> layers_to_quantize(const Module& module, const QuantizeModuleOptions& options) {
  std::vector<Layer> layers = layers_of(module, choice_of(options));
  std::erase_if(layers, [](const Layer& layer) { return is_packed(base_weight(layer.weight)); });
  return layers;
}

/// Returns a weight of zeros, for which nothing is quantized.
PackedDataPtr zeros_like(const at::Tensor& weight, const QuantizeModuleOptions& options) {
  const at::Device device = weight.device();
  if (options.format != Format::kInt8)
    return make_packed_4bit(
        zeros_4bit(weight.sizes(), at::kHalf,
                   {options.format, options.blocksize, options.compress_statistics}, device),
        options.compute_dtype);
  const int64_t rows = weight.size(0), width = c10::multiply_integers(weight.sizes().slice(1));
  return make_packed_int8({at::zeros({rows, width}, at::TensorOptions(device).dtype(at::kChar)),
                           at::zeros({rows}, at::TensorOptions(device).dtype(at::kFloat)),
                           {}},
                          options.threshold, weight.sizes().vec());
}

PackedDataPtr pack(const Layer& layer, const QuantizeModuleOptions& options) {
  const at::Tensor weight = base_weight(layer.weight);  // an adapter stays around the quantized weight
  const std::string name = "'" + layer.name + "'";
  check_is_leaf({layer.name, weight}, "quantize_module");
  // libtorch gives a parameter on this device no packed weight, not even one of zeros.
  TORCH_CHECK_VALUE(!weight.is_meta(), "quantize_module: ", name,
                    " is on the meta device and has no values; load the module first");
  if (options.zeros) return zeros_like(weight, options);
  if (options.format == Format::kInt8) return pack_int8(weight, options.threshold, name);
  return pack_4bit(weight, {options.format, options.blocksize, options.compress_statistics}, name,
                   options.compute_dtype);
}

/// The nominal dtype of a packed weight; float64 has none.
at::ScalarType nominal_dtype(const at::Tensor& weight) {
  return weight.scalar_type() == at::kDouble ? at::kFloat : weight.scalar_type();
}

/// Gives a parameter a packed weight. An adapter around the parameter's weight stays.
void set_weight(const at::Tensor& parameter, const PackedDataPtr& data) {
  const at::Tensor packed = make_packed_weight(data, nominal_dtype(parameter));
  replace_weight(parameter, with_base_weight(parameter, packed));
}

/// Returns the 4- and 8-bit weights of a module with their names, each once.
std::vector<std::pair<std::string, at::Tensor>> quantized_weights(const Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor base = base_weight(item.value());  // of an adapter, or the weight itself
    if (!is_packed(base)) continue;
    const PackedDataPtr data = packed_data(base);
    if ((find_4bit(*data) || find_int8(*data)) && seen.insert(item.value().unsafeGetTensorImpl()).second)
      found.emplace_back(item.key(), item.value());
  }
  return found;
}

/// Returns the same codes with the compute dtype or the threshold of `options`; null for another format.
PackedDataPtr with_options(const PackedData& data, const QuantizeModuleOptions& options) {
  if (const Quantized4Bit* const codes = find_4bit(data))
    return make_packed_4bit(*codes, options.compute_dtype);
  const QuantizedInt8* const codes = find_int8(data);
  if (!codes || options.format != Format::kInt8) return nullptr;
  return make_packed_int8(*codes, options.threshold, data.sizes().vec());
}

}  // namespace

void quantize_module(Module& module, const QuantizeModuleOptions& options, const std::string& who) {
  TORCH_CHECK_TYPE(
      has_layers_to_quantize(module, options), who, ": ", module.name(), " has no torch::nn::Linear",
      options.embeddings ? ", no embedding" : "", options.convolutions ? ", no convolution" : "",
      " whose weight could be quantized; choose another mode",
      options.embeddings && options.convolutions ? "" : ", or quantize_embeddings or quantize_convolutions");
  if (const auto existing = quantized_weights(module); !existing.empty()) {
    std::vector<PackedDataPtr> made;
    for (const auto& [name, weight] : existing)
      made.push_back(with_options(*packed_data(base_weight(weight)), options));
    for (size_t i = 0; i < made.size(); ++i)
      if (made[i]) set_weight(existing[i].second, made[i]);
    return;
  }
  const std::vector<Layer> layers = layers_to_quantize(module, options);
  std::vector<PackedDataPtr> packed;
  for (const Layer& layer : layers) packed.push_back(pack(layer, options));
  for (size_t i = 0; i < layers.size(); ++i) set_weight(layers[i].weight, packed[i]);
}

bool has_layers_to_quantize(const Module& module, const QuantizeModuleOptions& options) {
  return has_layers(module, choice_of(options));
}

std::vector<std::string> quantized_formats(const Module& module) {
  std::set<std::string> formats;
  for (const auto& [name, weight] : quantized_weights(module))
    formats.insert(packed_data(base_weight(weight))->description());
  return {formats.begin(), formats.end()};
}

}  // namespace mantissa
