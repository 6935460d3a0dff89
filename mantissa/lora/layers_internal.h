#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/lora/lora_config.h"
#include "mantissa/lora/lora_weight_internal.h"

namespace mantissa::lora {

/// A linear layer with its adapters.
struct Layer {
  std::string name;
  std::shared_ptr<torch::nn::LinearImpl> module;
  std::map<std::string, AdapterPtr> adapters = {};
  /// The weight from before it was merged; undefined if it is not.
  at::Tensor unmerged = {};
};

/// A linear layer of a model, by name.
struct FoundLayer {
  std::string name;
  std::shared_ptr<torch::nn::LinearImpl> module;
};

/// Calls `visit` once for each module below `root`, with the first of its names. Adapters are left out.
void visit_modules(
    const torch::nn::Module& root,
    const std::function<void(const std::string&, const std::shared_ptr<torch::nn::Module>&)>& visit);

/// Returns the layers that `config` means. With `every_name` each of the names must fit a layer.
/// Errors: c10::ValueError that names a layer that cannot have an adapter, or a name that fits no layer.
std::vector<FoundLayer> find_targets(const torch::nn::Module& root, const LoraConfig& config,
                                     bool every_name);

/// Returns the linear layers with these names.
/// Errors: c10::ValueError, which begins with `from`, for a name that is no linear layer which can have an adapter.
std::vector<FoundLayer> find_layers(const torch::nn::Module& root, const std::vector<std::string>& names,
                                    const std::string& from);

}  // namespace mantissa::lora
