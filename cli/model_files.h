#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa::cli {

/// Writes a model's weights; of packed ones, their parts. A symbolic link of this name is replaced.
void save_model(const torch::nn::Module& model, const std::filesystem::path& file,
                const std::map<std::string, std::string>& about);

/// Loads what save_model() or a checkpoint has written into a model with the same packed weights.
/// Errors: those of load_weights() and PartsLoader; nothing has changed then.
void load_model(torch::nn::Module& model, std::map<std::string, at::Tensor> weights, const std::string& from);

}  // namespace mantissa::cli
