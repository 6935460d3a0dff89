#pragma once

#include <filesystem>
#include <string>

#include "mantissa/io/sharded.h"

namespace torch::nn {
class Module;
}

namespace mantissa::cli {

/// Returns the text of a config.json for other files of the model's weights: its dtype is the one that most of their values
/// have. A dtype that transformers has no name for, and a text that is no JSON object, leave it as it is.
std::string config_for(const SafetensorsLayout& weights, const std::filesystem::path& config);

/// Returns the text of the config.json that transformers needs beside the weights of a model; "" for a model that it does not
/// know, and for one with quantized weights.
std::string config_of(const torch::nn::Module& model);

}  // namespace mantissa::cli
