#include "cli/model_config.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "mantissa/io/weights.h"
#include "mantissa/models/causal_model.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa::cli {
namespace {

/// Returns what transformers calls the dtype that most values have, of those that it has a name for; "" if none has one.
std::string dtype_of(const SafetensorsLayout& weights) {
  static const std::map<at::ScalarType, const char*> names{
      {at::kDouble, "float64"}, {at::kFloat, "float32"}, {at::kBFloat16, "bfloat16"}, {at::kHalf, "float16"}};
  std::map<at::ScalarType, uint64_t> values;
  for (const auto& file : weights.files)
    for (const auto& [name, entry] : file.header.tensors)
      if (names.contains(entry.dtype))
        values[entry.dtype] += (entry.end - entry.begin) / c10::elementSize(entry.dtype);
  const auto most = std::max_element(values.begin(), values.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == values.end() ? "" : names.at(most->first);
}

}  // namespace

std::string config_for(const SafetensorsLayout& weights, const std::filesystem::path& config) {
  std::ifstream in(config, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {}), dtype = dtype_of(weights);
  auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (dtype.empty() || !json.is_object()) return text;
  // transformers 4.56 and newer write "dtype", older ones "torch_dtype".
  const char* const key = json.contains("dtype") ? "dtype" : "torch_dtype";
  if (json[key] == dtype) return text;
  json[key] = dtype;
  return json.dump(2) + "\n";
}

std::string config_of(const torch::nn::Module& model) {
  const auto* const causal = dynamic_cast<const CausalModel*>(&model);
  const auto weights = named_weights(model);
  if (!causal || plain_weights(weights).size() != weights.size()) return "";
  return causal->config_json(causal->parameters().front().scalar_type());
}

}  // namespace mantissa::cli
