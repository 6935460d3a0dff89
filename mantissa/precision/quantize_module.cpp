#include "mantissa/precision/quantize_module.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/packed_int8.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa {
namespace {

using torch::nn::Module;

/// A weight that is to be quantized.
struct Layer {
  Module* module;
  std::string name;  ///< of the weight, with dots
  at::Tensor weight;
};

bool is_kind_to_quantize(const Module& module, const QuantizeModuleOptions& options) {
  if (module.as<torch::nn::Linear>()) return true;
  if (module.as<torch::nn::Embedding>() || module.as<torch::nn::EmbeddingBag>()) return options.embeddings;
  return options.convolutions &&
         (module.as<torch::nn::Conv1d>() || module.as<torch::nn::Conv2d>() ||
          module.as<torch::nn::Conv3d>() || module.as<torch::nn::ConvTranspose1d>() ||
          module.as<torch::nn::ConvTranspose2d>() || module.as<torch::nn::ConvTranspose3d>());
}

bool is_ignored(const std::string& name, const std::vector<std::string>& ignored) {
  return std::any_of(ignored.begin(), ignored.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

/// Returns the layers whose weights are quantized, each weight once.
std::vector<Layer> layers_of(Module& module, const QuantizeModuleOptions& options) {
  std::vector<Layer> layers;
  std::unordered_set<const at::TensorImpl*> seen, ignored;
  const auto visit = [&](const std::string& name, Module& part) {
    if (!is_kind_to_quantize(part, options)) return;
    const auto own = part.named_parameters(/*recurse=*/false);
    const at::Tensor* const weight = own.find("weight");
    if (!weight || !weight->defined() || is_packed(base_weight(*weight))) return;
    if (is_ignored(name, options.ignore_modules)) {
      ignored.insert(weight->unsafeGetTensorImpl());
    } else if (seen.insert(weight->unsafeGetTensorImpl()).second) {
      layers.push_back({&part, name.empty() ? "weight" : name + ".weight", *weight});
    }
  };
  visit("", module);  // named_modules(include_self) would require a shared_ptr to it
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    visit(item.key(), *item.value());
  std::erase_if(layers,
                [&](const Layer& each) { return ignored.contains(each.weight.unsafeGetTensorImpl()); });
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
  TORCH_CHECK_VALUE(weight.is_leaf(), "quantize_module: autograd computed ", name,
                    ", so it would be computed again; name its layer in ignore_modules");
  if (options.zeros) return zeros_like(weight, options);
  TORCH_CHECK_VALUE(!weight.is_meta(), "quantize_module: ", name,
                    " is on the meta device and has no values; load the module first");
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

/// Returns the packed weight that `stored` has for a parameter, or null.
PackedDataPtr stored_weight(const std::string& name, const at::Tensor& parameter,
                            const std::map<std::string, at::Tensor>& stored, double threshold) {
  const auto check_shape = [&](bool fits, at::IntArrayRef shape) {
    TORCH_CHECK_VALUE(fits, "pack_stored_weights: '", name, "' has shape ", shape, " in the file, and ",
                      parameter.sizes(), " in the module; load the weights of the same model");
  };
  if (has_state_4bit(stored, name)) {
    Quantized4Bit weight = unpack_state_4bit(stored, name);
    check_shape(parameter.sizes() == at::IntArrayRef(weight.shape), weight.shape);
    return make_packed_4bit(std::move(weight));
  }
  if (!has_state_int8(stored, name)) return nullptr;
  QuantizedInt8 weight = unpack_state_int8(stored, name);
  check_shape(parameter.sizes() == stored.at(name).sizes(), stored.at(name).sizes());
  return make_packed_int8(std::move(weight), threshold, parameter.sizes().vec());
}

}  // namespace

void quantize_module(Module& module, const QuantizeModuleOptions& options, const std::string& who) {
  TORCH_CHECK_TYPE(
      has_layers_to_quantize(module, options), who, ": ", module.name(), " has no torch::nn::Linear",
      options.embeddings ? ", no embedding" : "", options.convolutions ? ", no convolution" : "",
      " whose weight could be quantized; choose another mode",
      options.embeddings && options.convolutions ? "" : ", or quantize_embeddings or quantize_convolutions");
  if (const auto existing = quantized_weights(module); !existing.empty()) {
    for (const auto& [name, weight] : existing)
      if (const PackedDataPtr data = with_options(*packed_data(base_weight(weight)), options))
        set_weight(weight, data);
    return;
  }
  const std::vector<Layer> layers = layers_of(module, options);
  std::vector<PackedDataPtr> packed;
  for (const Layer& layer : layers) packed.push_back(pack(layer, options));
  for (size_t i = 0; i < layers.size(); ++i) set_weight(layers[i].weight, packed[i]);
}

bool has_layers_to_quantize(const Module& module, const QuantizeModuleOptions& options) {
  if (is_kind_to_quantize(module, options)) return true;
  const auto parts = module.modules(/*include_self=*/false);
  return std::any_of(parts.begin(), parts.end(),
                     [&](const auto& part) { return is_kind_to_quantize(*part, options); });
}

std::vector<std::string> unmatched_names(const Module& module, const std::vector<std::string>& ignored) {
  std::vector<std::string> unmatched = ignored;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    std::erase_if(unmatched, [&](const std::string& prefix) { return item.key().starts_with(prefix); });
  return unmatched;
}

std::vector<std::string> quantized_formats(const Module& module) {
  std::set<std::string> formats;
  for (const auto& [name, weight] : quantized_weights(module))
    formats.insert(packed_data(base_weight(weight))->description());
  return {formats.begin(), formats.end()};
}

int64_t pack_stored_weights(Module& module, const std::map<std::string, at::Tensor>& stored,
                            double threshold) {
  std::unordered_set<const at::TensorImpl*> seen;
  std::vector<std::pair<at::Tensor, PackedDataPtr>> made;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (is_packed(base_weight(parameter)) || seen.contains(parameter.unsafeGetTensorImpl())) continue;
    const PackedDataPtr data = stored_weight(item.key(), parameter, stored, threshold);
    if (!data) continue;
    seen.insert(parameter.unsafeGetTensorImpl());
    made.emplace_back(parameter, data->to(parameter.device()));
  }
  for (const auto& [parameter, data] : made) set_weight(parameter, data);
  return static_cast<int64_t>(made.size());
}

}  // namespace mantissa
