#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa::cli {

struct FitOptions;

/// The tensors of a weights file that has 4- or 8-bit weights; empty for any other file, which has not been read.
std::map<std::string, at::Tensor> read_if_quantized(const std::filesystem::path& file);

/// Loads the tensors of a file or checkpoint into a float model, for a run with the options `o`. If its mode has
/// quantized weights, the model gets the file's 4- and 8-bit weights as they are. Any other mode gets their
/// values, with a warning. `from` is the file's name in messages.
/// Errors: those of load_weights(), pack_stored_weights() and dequantize_stored().
void load_model_weights(torch::nn::Module& model, std::map<std::string, at::Tensor> stored,
                        const std::string& from, const FitOptions& o);
/// The same for a file.
void load_model_weights(torch::nn::Module& model, const std::filesystem::path& file, const FitOptions& o);

/// Writes a model's weights as save_weights() does, and packed ones as bitsandbytes does. An existing link is
/// replaced.
void save_model_weights(const torch::nn::Module& model, const std::filesystem::path& file,
                        const std::map<std::string, std::string>& about);

}  // namespace mantissa::cli
