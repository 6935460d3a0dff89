#include "mantissa/weights/named_parts.h"

#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

std::string key_of(const std::string& weight, const std::string& part) {
  return part.empty() ? weight : weight + "." + part;
}

/// Returns the stored parts of the packed `weight`, checked and on its device.
PackedData::Parts find_parts(const std::string& name, const PackedData& weight,
                             const std::map<std::string, at::Tensor>& stored) {
  PackedData::Parts parts;
  // The plain base of an adapter takes other floating-point values, as plain weights do.
  const bool is_base_plain = weight.base().defined() && !is_packed(weight.base());
  for (const auto& [part, own] : weight.parts()) {
    const std::string key = key_of(name, part);
    const auto found = stored.find(key);
    TORCH_CHECK_VALUE(found != stored.end(), "PartsLoader: '", key, "' is missing, which the packed weight '",
                      name, "' (", weight.description(), ") needs; load into a model of the saved format");
    const at::Tensor& value = found->second;
    const bool has_dtype = value.scalar_type() == own.scalar_type() ||
                           (is_base_plain && c10::isFloatingType(value.scalar_type()));
    TORCH_CHECK_VALUE(has_dtype && value.sizes() == own.sizes(),
                      "PartsLoader: '", key, "' is ", value.scalar_type(), " ", value.sizes(),
                      ", and the packed weight '", name, "' (", weight.description(), ") needs ",
                      own.scalar_type(), " ", own.sizes(), "; load into a model of the saved format");
    parts.emplace(part, value.detach().to(own.device(), /*dtype=*/own.scalar_type(), /*non_blocking=*/false,
                                          /*copy=*/true));
  }
  return parts;
}

}  // namespace

std::map<std::string, at::Tensor> named_parts(const std::map<std::string, at::Tensor>& weights) {
  std::map<std::string, at::Tensor> all;
  const auto add = [&](const std::string& key, const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(all.emplace(key, tensor).second, "named_parts: two tensors have the name '", key,
                      "'; rename the module's parameter, since parts take their names from the format");
  };
  for (const auto& [name, weight] : weights) {
    if (!is_packed(weight)) {
      add(name, weight);
    } else {
      for (const auto& [part, tensor] : packed_data(weight)->parts()) add(key_of(name, part), tensor);
    }
  }
  return all;
}

std::map<std::string, at::Tensor> plain_weights(std::map<std::string, at::Tensor> weights) {
  std::erase_if(weights, [](const auto& item) { return is_packed(item.second); });
  return weights;
}

PartsLoader::PartsLoader(torch::nn::Module& module, std::map<std::string, at::Tensor>& stored) {
  std::vector<std::string> used;
  const auto collect = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      const at::Tensor& weight = item.value();
      if (!is_packed(weight)) continue;
      const PackedDataPtr data = packed_data(weight);
      PackedData::Parts parts = find_parts(item.key(), *data, stored);
      for (const auto& [part, tensor] : parts) used.push_back(key_of(item.key(), part));
      weights_.emplace_back(weight,
                            make_packed_weight(data->with_parts(std::move(parts)), weight.scalar_type()));
    }
  };
  collect(module.named_parameters());
  collect(module.named_buffers());
  for (const std::string& key : used) stored.erase(key);
}

void PartsLoader::load() {
  const at::NoGradGuard no_grad;
  for (auto& [weight, made] : weights_) weight.set_data(made);
}

}  // namespace mantissa
