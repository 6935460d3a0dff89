#include <algorithm>
#include <set>
#include <unordered_set>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/core/suggest.h"
#include "mantissa/precision/layers_internal.h"
#include "mantissa/weights/attention.h"
#include "mantissa/weights/linear_weights.h"

namespace mantissa {
namespace {

using torch::nn::Module;

bool is_chosen_kind(const Module& module, const LayerChoice& choice) {
  if (module.as<torch::nn::Linear>() || dynamic_cast<const HasLinearWeights*>(&module)) return true;
  if (module.as<torch::nn::Embedding>() || module.as<torch::nn::EmbeddingBag>()) return choice.embeddings;
  return choice.convolutions &&
         (module.as<torch::nn::Conv1d>() || module.as<torch::nn::Conv2d>() ||
          module.as<torch::nn::Conv3d>() || module.as<torch::nn::ConvTranspose1d>() ||
          module.as<torch::nn::ConvTranspose2d>() || module.as<torch::nn::ConvTranspose3d>());
}

/// The weights that the layer's forward() uses, by their names in the module.
std::vector<Layer> weights_of(const Module& module) {
  // Tying two layers by an assignment changes the member and not the list of parameters.
  if (const auto* const linear = module.as<torch::nn::Linear>()) return {{"weight", linear->weight}};
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const auto* const own = dynamic_cast<const HasLinearWeights*>(&module);
  std::vector<Layer> weights;
  for (const std::string& name : own ? own->linear_weights() : std::vector<std::string>{"weight"})
    if (const at::Tensor* const weight = parameters.find(name)) weights.push_back({name, *weight});
  return weights;
}

}  // namespace

bool is_ignored(const std::string& name, const std::vector<std::string>& ignored) {
  return std::any_of(ignored.begin(), ignored.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

std::set<const c10::TensorImpl*> parameters_of_others(const Module& module) {
  std::set<const c10::TensorImpl*> found;
  const auto visit = [&](const Module& part) {
    if (is_chosen_kind(part, {})) return;
    for (const at::Tensor& parameter : part.parameters(/*recurse=*/false))
      found.insert(parameter.unsafeGetTensorImpl());
  };
  visit(module);
  for (const auto& part : module.modules(/*include_self=*/false)) visit(*part);
  return found;
}

std::vector<Attention> attentions_of(Module& module) {
  std::vector<Attention> attentions;
  if (auto* const own = dynamic_cast<HasAttention*>(&module)) attentions.push_back({"", own});
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    if (auto* const part = dynamic_cast<HasAttention*>(item.value().get()))
      attentions.push_back({item.key(), part});
  return attentions;
}

bool has_layers(const Module& module, const LayerChoice& choice) {
  if (is_chosen_kind(module, choice)) return true;
  const auto parts = module.modules(/*include_self=*/false);
  return std::any_of(parts.begin(), parts.end(),
                     [&](const auto& part) { return is_chosen_kind(*part, choice); });
}

std::vector<Layer> layers_of(const Module& module, const LayerChoice& choice) {
  std::vector<Layer> layers;
  std::unordered_set<const at::TensorImpl*> seen, ignored;
  const auto visit = [&](const std::string& name, const Module& part) {
    if (!is_chosen_kind(part, choice)) return;
    for (const auto& [weight_name, weight] : weights_of(part)) {
      if (!weight.defined()) continue;
      const std::string full_name = name.empty() ? weight_name : name + "." + weight_name;
      if (is_ignored(full_name, choice.ignore_modules)) {
        ignored.insert(weight.unsafeGetTensorImpl());
      } else if (seen.insert(weight.unsafeGetTensorImpl()).second) {
        layers.push_back({full_name, weight});
      }
    }
  };
  visit("", module);  // named_modules(include_self) would require a shared_ptr to it
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    visit(item.key(), *item.value());
  std::erase_if(layers,
                [&](const Layer& layer) { return ignored.contains(layer.weight.unsafeGetTensorImpl()); });
  return layers;
}

void check_is_leaf(const Layer& layer, const std::string& who) {
  TORCH_CHECK_VALUE(layer.weight.is_leaf(), who, ": autograd computed '", layer.name,
                    "', so it would be computed again; name its layer in ignore_modules");
}

std::vector<std::string> unmatched_names(const Module& module, const std::vector<std::string>& ignored) {
  std::vector<std::string> unmatched = ignored;
  const auto erase_those_of = [&unmatched](const std::string& name) {
    std::erase_if(unmatched, [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    erase_those_of(item.key());
  for (const auto& item : module.named_parameters()) erase_those_of(item.key());
  return unmatched;
}

void warn_about_unmatched_names(const Module& module, const std::vector<std::string>& ignored,
                                const std::string& who) {
  for (const std::string& name : unmatched_names(module, ignored))
    TORCH_WARN(who, ": ignore_modules '", name, "' matches no submodule of ", module.name(),
               did_you_mean(name, module.named_modules("", /*include_self=*/false).keys()));
}

}  // namespace mantissa
