#include "mantissa/io/weights.h"

#include <sstream>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/safetensors.h"

namespace mantissa {
namespace {

/// More problems than a reader takes in; the rest is counted.
constexpr size_t kMaxListed = 8;

/// Why `entry` cannot be loaded into `weight`, or "".
std::string misfit(const SafetensorsEntry& entry, const at::Tensor& weight) {
  std::ostringstream why;
  if (weight.sizes() != at::IntArrayRef(entry.shape)) {
    why << "has shape " << at::IntArrayRef(entry.shape) << " in the file, " << weight.sizes()
        << " in the module";
  } else if (!c10::canCast(entry.dtype, weight.scalar_type())) {
    why << "is " << c10::toString(entry.dtype) << " in the file, which cannot become the module's "
        << c10::toString(weight.scalar_type());
  } else if (weight.is_meta()) {
    why << "is on the meta device; materialise the module first";
  }
  return why.str();
}

std::vector<std::string> problems(const SafetensorsFile& file,
                                  const std::map<std::string, at::Tensor>& weights) {
  std::vector<std::string> unknown, found;
  for (const auto& [name, entry] : file.entries()) {
    if (!weights.contains(name)) unknown.push_back(name);
  }
  for (const auto& [name, weight] : weights) {
    const auto entry = file.entries().find(name);
    if (entry == file.entries().end()) {
      found.push_back("'" + name + "' is missing in the file" + did_you_mean(name, unknown));
    } else if (const std::string why = misfit(entry->second, weight); !why.empty()) {
      found.push_back("'" + name + "' " + why);
    }
  }
  for (const std::string& name : unknown) found.push_back("'" + name + "' is unknown to the module");
  return found;
}

}  // namespace

std::map<std::string, at::Tensor> named_weights(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : module.named_parameters()) weights.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) weights.emplace(item.key(), item.value());
  std::erase_if(weights, [](const auto& item) { return !item.second.defined(); });
  return weights;
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& path,
                  const std::map<std::string, std::string>& metadata) {
  save_safetensors(path, named_weights(module), metadata);
}

void load_weights(torch::nn::Module& module, const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> weights = named_weights(module);
  std::vector<std::string> wrong = problems(file, weights);
  if (!wrong.empty()) {
    const size_t count = wrong.size();
    if (count > kMaxListed) {
      wrong.resize(kMaxListed);
      wrong.push_back("and " + std::to_string(count - kMaxListed) + " more");
    }
    TORCH_CHECK_VALUE(false, "load_weights: '", path.string(), "' does not fit the module in ", count,
                      count == 1 ? " place: " : " places: ", join_names(wrong),
                      "; build the module with the options that the file was saved with");
  }
  const at::NoGradGuard no_grad;
  for (auto& [name, weight] : weights) weight.copy_(file.read(name));
}

}  // namespace mantissa
