#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/lora/layers_internal.h"
#include "mantissa/lora/lora_model.h"

namespace mantissa {

/// Settings of an adapter, and whether it is trained while it is active.
struct KnownAdapter {
  LoraConfig config;
  bool is_trainable = true;
};

/// The tensors of one adapter in one layer. An undefined one gets its initial values.
struct LayerValues {
  at::Tensor a, b, magnitude;
};

struct LoraModel::State {
  explicit State(torch::nn::Module& root) : model(root) {}

  torch::nn::Module& model;
  std::vector<lora::Layer> layers;
  std::map<std::string, KnownAdapter> known;
  std::vector<std::string> active;
  bool enabled = true, merged = false;
  /// Parameters that were trained before the first adapter was added.
  std::vector<at::Tensor> frozen;

  /// Adds an adapter to the layers `found`, with values by layer. Throws before it changes anything.
  void add(const std::string& name, const KnownAdapter& adapter, const std::vector<lora::FoundLayer>& found,
           const std::map<std::string, LayerValues>& values);
  /// Checks a new adapter's name.
  void check_new(const std::string& name) const;
  /// Returns the adapter. Throws, with the nearest name, if there is none.
  const KnownAdapter& find(const char* function, const std::string& name) const;
  void check_not_merged(const char* function) const;
  /// Gives each layer the weight that its active adapters ask for, and says which parameters are trained.
  void apply();
  /// Removes an adapter's parameters from the layers, and layers without adapters from the list.
  void remove(const std::string& name);
  /// Removes all adapters and trains again what was trained before. The layers' weights are those without
  /// adapters then.
  void forget_all();

  lora::Layer* find_layer(const torch::nn::LinearImpl* module);
};

}  // namespace mantissa
