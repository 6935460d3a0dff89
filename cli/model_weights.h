#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/io/sharded.h"

namespace torch::nn {
class Module;
}

namespace mantissa::cli {

struct FitOptions;

/// Returns the dtypes of the tensors of a file by their names.
std::map<std::string, at::ScalarType> dtypes_of(const std::map<std::string, SafetensorsEntry>& entries);

/// Returns the mode whose weights a file's tensors are, such as bf16-true, nf4-dq or, if weights differ, "int8 and
/// nf4"; "" if they are of no mode, such as fp8-e4m3.
std::string mode_of_weights(const std::map<std::string, SafetensorsEntry>& tensors);

/// The tensors of a model whose file has 4- or 8-bit weights; empty, without reading tensors, if the file has no
/// quantized weights.
std::map<std::string, at::Tensor> read_if_quantized(const SafetensorsModel& model);

/// Loads the tensors of a file or checkpoint into a float model, for a run with the options `o`. If the file has
/// 4- or 8-bit weights and the mode has quantized ones, the mode quantizes the model first, and then the file's
/// codes replace the model's. Weights that the mode leaves in float get the file's values, with a warning.
/// `from` is the file's name in messages.
/// Errors: those of load_weights(), PartsLoader and dequantize_stored().
void load_model_weights(torch::nn::Module& model, std::map<std::string, at::Tensor> stored,
                        const std::string& from, const FitOptions& o);
/// The same for a safetensors file, the index of a model in shards, or a folder with one of them. It has the form of the
/// model's public files (models/weight_form.h).
/// Errors: those of SafetensorsModel, too.
void load_model_weights(torch::nn::Module& model, const std::filesystem::path& file, const FitOptions& o);

/// Writes a model's weights as save_weights() does, in the form of its public files, and packed ones as bitsandbytes does. An existing link is
/// replaced.
void save_model_weights(const torch::nn::Module& model, const std::filesystem::path& file,
                        const std::map<std::string, std::string>& about);

}  // namespace mantissa::cli
