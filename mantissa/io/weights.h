#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/io/atomic_file.h"

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Returns a module's parameters and buffers under their dotted names ("layers.0.weight"), as PyTorch's
/// state_dict() does. The tensors are the module's own. Undefined parameters and buffers are left out.
std::map<std::string, at::Tensor> named_weights(const torch::nn::Module& module);

/// Writes a module's weights as safetensors, under the names that PyTorch's state_dict() gives the same
/// module.
/// Errors: those of save_safetensors().
void save_weights(const torch::nn::Module& module, const std::filesystem::path& path,
                  const std::map<std::string, std::string>& metadata = {}, Links links = Links::kFollow);

/// Copies `weights` into the tensors `own`, in place, by name; they must fit exactly. `from` is their name in
/// errors.
///
/// Numerics and errors: as for the file, below.
void load_weights(const std::map<std::string, at::Tensor>& own,
                  const std::map<std::string, at::Tensor>& weights, const std::string& from);

/// Copies `weights` into a module, in place, by name; they must fit exactly. `from` is their name in errors.
///
/// Numerics and errors: as for the file, below.
void load_weights(torch::nn::Module& module, const std::map<std::string, at::Tensor>& weights,
                  const std::string& from);

/// Copies the weights of a model into a module, in place, by name; the model must fit exactly. `path` is a
/// safetensors file, the index of a model in shards, or a folder with one of them (SafetensorsModel).
///
/// Numerics: values are converted to the module's dtypes, by copy_().
/// Memory:   one tensor at a time beside the module.
/// Errors:   c10::ValueError that lists, in one message, every name that is missing in the file or unknown to
///           the module, every different shape, every dtype that cannot be converted (float to integer,
///           complex to real) and every weight on the meta device; c10::ValueError with the cures for a
///           file with weights in 4 or 8 bits; those of SafetensorsModel. All are found before anything is
///           changed.
void load_weights(torch::nn::Module& module, const std::filesystem::path& path);

/// Returns the name that a module has for a tensor of a file, or "" for one that it does not need.
using OwnName = std::function<std::string(const std::string& name)>;

/// The same for the tensors `own`, which may be views, and a file with other names.
/// Errors: c10::ValueError, too, if two tensors of the file are the same weight.
void load_weights(const std::map<std::string, at::Tensor>& own, const std::filesystem::path& path,
                  const OwnName& own_name);

}  // namespace mantissa
