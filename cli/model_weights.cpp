#include "cli/model_weights.h"

#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "cli/fit_options.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/precision/registry.h"
#include "mantissa/quant/stored_weights.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa::cli {

std::map<std::string, at::Tensor> read_if_quantized(const std::filesystem::path& file) {
  const SafetensorsFile opened(file);
  std::map<std::string, at::Tensor> all;
  if (quantized_weights_of(keys_of(opened.entries())).empty()) return all;
  for (const auto& [name, entry] : opened.entries()) all.emplace(name, opened.read(name));
  return all;
}

void load_model_weights(torch::nn::Module& model, std::map<std::string, at::Tensor> stored,
                        const std::string& from, const FitOptions& o) {
  const std::vector<std::string> quantized = quantized_weights_of(keys_of(stored));
  if (!quantized.empty() && !o.traits().frozen_weights) {
    TORCH_WARN("'", from, "' has ", quantized.size(),
               " weights in 4 or 8 bits, which are restored to float32 for --precision ", o.precision(),
               "; a quantized mode such as nf4 keeps them");
    stored = dequantize_stored(std::move(stored));
  } else if (!quantized.empty()) {
    // The mode decides on formats and layers, as it does when the run is resumed.
    make_precision(o.precision(), at::kCPU, o.trainer.precision_options)->convert_module(model);
  }
  PartsLoader packed(model, stored);  // takes their parts out of `stored`
  if (const auto left = quantized_weights_of(keys_of(stored)); !left.empty()) {
    TORCH_WARN("'", from, "' has ", left.size(), " weights in 4 or 8 bits (the first is '", left[0],
               "') that --precision ", o.precision(), " leaves in float; they are restored");
    stored = dequantize_stored(std::move(stored));
  }
  load_weights(plain_weights(named_weights(model)), stored, from);
  packed.load();
}

void load_model_weights(torch::nn::Module& model, const std::filesystem::path& file, const FitOptions& o) {
  std::map<std::string, at::Tensor> stored = read_if_quantized(file);
  const std::map<std::string, at::Tensor> own = named_weights(model);
  if (stored.empty() && plain_weights(own).size() == own.size())
    return load_weights(model, file);  // reads one tensor at a time
  if (stored.empty()) stored = load_safetensors(file).tensors;
  load_model_weights(model, std::move(stored), file.string(), o);
}

void save_model_weights(const torch::nn::Module& model, const std::filesystem::path& file,
                        const std::map<std::string, std::string>& about) {
  save_safetensors(file, named_parts(named_weights(model)), about, Links::kReplace);
}

}  // namespace mantissa::cli
