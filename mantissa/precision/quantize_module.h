#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/formats.h"

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Which weights of a module quantize_module() quantizes, and how.
struct QuantizeModuleOptions {
  Format format = Format::kNF4;      ///< or kFP4, kInt8
  bool compress_statistics = false;  ///< 4 bits: the scales are stored in 8 bits
  int64_t blocksize = 64;            ///< 4 bits: values per scale
  double threshold = 6;              ///< int8: from which magnitude a column of an input is an outlier
  /// 4 bits: the dtype of products. Unset: that of the input.
  std::optional<at::ScalarType> compute_dtype = std::nullopt;
  /// Layers whose dotted name begins with one of these stay as they are.
  std::vector<std::string> ignore_modules = {};
  bool embeddings = false, convolutions = false;  ///< quantizes these layers, too
  /// Gives every weight the value zero, whatever values it has. Nothing is quantized then. Weights on the meta device
  /// are refused all the same.
  bool zeros = false;
};

/// Replaces the weights of all torch::nn::Linear layers of a module by packed ones, with which the layers compute
/// as linear_4bit() and linear_int8() do. The layers stay the same objects, and biases stay as they are.
///
/// Weights:  values are first rounded to float16, as by Lightning. A weight that several layers share is
///           quantized once and stays shared; if one of these layers is ignored, it is left as it is.
/// Repeated: if the module has a 4- or 8-bit weight already, nothing is quantized. Existing 4-bit weights take
///           over the compute dtype, and existing int8 weights the threshold of an int8 mode. A packed weight of another format is left as it is.
/// Memory:   the float weights exist until all are quantized.
/// Errors:   c10::TypeError that begins with `who` for a module without a layer to quantize; c10::ValueError that
///           names the weight if it cannot be quantized (inf, NaN, too large for float16, on the meta device,
///           computed by autograd); those of check_options() and make_packed_int8(). Nothing has changed then.
/// Example:  quantize_module_test.cpp, QuantizeModule.ReplacesTheWeightsOfAllLinearLayers.
void quantize_module(torch::nn::Module& module, const QuantizeModuleOptions& options, const std::string& who);

/// Whether a module has a layer that quantize_module() could quantize; ignored ones count.
bool has_layers_to_quantize(const torch::nn::Module& module, const QuantizeModuleOptions& options);

/// Returns what the 4- and 8-bit weights of a module are, "nf4, blocks of 64", each kind once.
std::vector<std::string> quantized_formats(const torch::nn::Module& module);

}  // namespace mantissa
