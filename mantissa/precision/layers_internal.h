#pragma once

#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

class HasAttention;

/// Which layers a mode converts: every torch::nn::Linear and what has such weights (weights/linear_weights.h), and further
/// kinds by choice.
struct LayerChoice {
  bool embeddings = false, convolutions = false;
  std::vector<std::string> ignore_modules = {};  ///< beginnings of dotted names of weights that are left out
};

/// A layer, by its weight.
struct Layer {
  std::string name;  ///< of the weight, with dots
  at::Tensor weight;
};

/// Whether a module has a layer of the chosen kinds; ignored ones count.
bool has_layers(const torch::nn::Module& module, const LayerChoice& choice);

/// Returns the chosen layers of a module, each weight once. A weight that an ignored layer shares is left out.
std::vector<Layer> layers_of(const torch::nn::Module& module, const LayerChoice& choice);

/// Returns the parameters of the module's parts that are no linear layers. A layer may share its weight with one of them, as
/// with an embedding.
std::set<const c10::TensorImpl*> parameters_of_others(const torch::nn::Module& module);

/// A module that is an attention, or a part that is.
struct Attention {
  std::string name;  ///< with dots; "" for the module itself
  HasAttention* module;
};

std::vector<Attention> attentions_of(torch::nn::Module& module);

/// Whether one of `ignored` is the beginning of a dotted name.
bool is_ignored(const std::string& name, const std::vector<std::string>& ignored);

/// Errors: c10::ValueError, which begins with `who`, if autograd computed the layer's weight. It would be computed
///         again, and lose what a mode has done to it.
void check_is_leaf(const Layer& layer, const std::string& who);

/// Returns those of `ignored` with which no dotted name of a submodule or parameter begins: most likely typing errors.
std::vector<std::string> unmatched_names(const torch::nn::Module& module,
                                         const std::vector<std::string>& ignored);

/// Warns of each of them; the warning begins with `who` and suggests the nearest name.
void warn_about_unmatched_names(const torch::nn::Module& module, const std::vector<std::string>& ignored,
                                const std::string& who);

}  // namespace mantissa
