#include "cli/model_files.h"

#include <utility>

#include <torch/nn/module.h>

#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa::cli {

void save_model(const torch::nn::Module& model, const std::filesystem::path& file,
                const std::map<std::string, std::string>& about) {
  save_safetensors(file, named_parts(named_weights(model)), about, Links::kReplace);
}

void load_model(torch::nn::Module& model, std::map<std::string, at::Tensor> weights,
                const std::string& from) {
  PartsLoader packed(model, weights);  // takes their parts out of `weights`
  load_weights(plain_weights(named_weights(model)), weights, from);
  packed.load();
}

}  // namespace mantissa::cli
