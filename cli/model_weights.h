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

/// Loads the tensors of a file or checkpoint into a float model, for a run with the options `o`. If the file has
/// 4- or 8-bit weights and the mode has quantized ones, the mode quantizes the model first, and then the file's
/// codes replace the model's. Weights that the mode leaves in float get the file's values, with a warning.
/// `from` is the file's name in messages.
/// Errors: those of load_weights(), PartsLoader and dequantize_stored().
void load_model_weights(torch::nn::Module& model, std::map<std::string, at::Tensor> stored,
                        const std::string& from, const FitOptions& o);
/// The same for a file.
void load_model_weights(torch::nn::Module& model, const std::filesystem::path& file, const FitOptions& o);

/// Writes a model's weights as save_weights() does, and packed ones as bitsandbytes does. An existing link is
/// replaced.
void save_model_weights(const torch::nn::Module& model, const std::filesystem::path& file,
                        const std::map<std::string, std::string>& about);

}  // namespace mantissa::cli
