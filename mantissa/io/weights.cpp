#include "mantissa/io/weights.h"

#include <algorithm>
#include <sstream>

#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/sharded.h"

namespace mantissa {
namespace {

/// More problems would not help a reader; the rest is only counted.
constexpr size_t kMaxListed = 8;

/// A tensor's dtype and shape, from a file or from memory.
struct Described {
  at::ScalarType dtype;
  at::IntArrayRef shape;
};

/// Whether a weight holds codes instead of numbers, so that nothing can be copied into it. libtorch has a key for other
/// projects, which only the weights of mantissa/weights have.
bool is_packed(const at::Tensor& weight) {
  return weight.key_set().has_backend(c10::BackendComponent::PrivateUse2Bit);
}

/// Returns why `stored` cannot be loaded into `weight`, or "".
std::string misfit(const Described& stored, const at::Tensor& weight) {
  std::ostringstream why;
  if (weight.sizes() != stored.shape) {
    why << "has shape " << stored.shape << " in the file, " << weight.sizes() << " in the module";
  } else if (!c10::canCast(stored.dtype, weight.scalar_type())) {
    why << "is " << c10::toString(stored.dtype) << " in the file, which cannot become the module's "
        << c10::toString(weight.scalar_type());
  } else if (weight.is_meta()) {
    why << "is on the meta device; materialise the module first";
  } else if (is_packed(weight)) {
    why << "is packed in the module (4- or 8-bit codes, or an adapter's weight); load it with PartsLoader";
  }
  return why.str();
}

/// Returns the weight in 4 or 8 bits to which a tensor of this name belongs, by bitsandbytes's names, or "".
std::string quantized_weight_of(const std::string& name) {
  const size_t end = name.find(".quant_state.bitsandbytes__");
  if (end != std::string::npos) return name.substr(0, end);
  return name == "SCB" || name.ends_with(".SCB") ? name.substr(0, name.size() - 3) + "weight" : "";
}

/// Whether a tensor of this name belongs to an adapter, by PEFT's names.
bool is_part_of_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

/// Errors: c10::ValueError that lists every mismatch between `stored` and `weights`.
void check_fit(const std::map<std::string, Described>& stored,
               const std::map<std::string, at::Tensor>& weights, const std::string& from) {
  std::vector<std::string> unknown, wrong;
  for (const auto& [name, entry] : stored) {
    if (!weights.contains(name)) unknown.push_back(name);
  }
  for (const auto& [name, weight] : weights) {
    const auto entry = stored.find(name);
    if (entry == stored.end()) {
      // This searches all of the file's names, so it runs only for problems that the message lists.
      const std::string hint = wrong.size() < kMaxListed ? fit_for_message(did_you_mean(name, unknown)) : "";
      wrong.push_back("'" + name + "' is missing in the file" + hint);
    } else if (const std::string why = misfit(entry->second, weight); !why.empty()) {
      wrong.push_back("'" + name + "' " + why);
    }
  }
  for (const std::string& name : unknown)
    wrong.push_back("'" + fit_for_message(name) + "' is unknown to the module");
  if (wrong.empty()) return;
  TORCH_CHECK_VALUE(
      unknown.size() < stored.size() || !std::all_of(unknown.begin(), unknown.end(), is_part_of_adapter),
      "load_weights: '", from,
      "' is an adapter without the weights of its model; load the model's file, and the "
      "adapter's folder on top: LoraModel::from_pretrained(), or mantissa fit --adapter");
  for (const std::string& name : unknown) {
    const std::string weight = quantized_weight_of(name);
    TORCH_CHECK_VALUE(
        weight.empty(), "load_weights: '", from, "' has '", fit_for_message(weight),
        "' in 4 or 8 bits; convert the module by the mode of the file, such as nf4 or int8, and load it "
        "with PartsLoader, or restore the numbers first: dequantize_stored(), or dequantize_plain() for "
        "the weights that the module has in float");
  }
  TORCH_CHECK_VALUE(
      unknown.size() < wrong.size() || !std::all_of(unknown.begin(), unknown.end(), is_part_of_adapter),
      "load_weights: '", from, "' has ", unknown.size(), " tensors of an adapter, such as '",
      fit_for_message(unknown.front()),
      "', and the module has no adapter; add the adapter first (LoraModel), or merge it: mantissa merge RUN");
  const size_t count = wrong.size();
  if (count > kMaxListed) {
    wrong.resize(kMaxListed);
    wrong.push_back("and " + std::to_string(count - kMaxListed) + " more");
  }
  TORCH_CHECK_VALUE(false, "load_weights: '", from, "' does not fit the module in ", count,
                    count == 1 ? " place: " : " places: ", join_names(wrong),
                    "; it needs a module of the kind and with the options that it was saved with");
}

}  // namespace

std::map<std::string, at::Tensor> named_weights(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : module.named_parameters()) weights.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) weights.emplace(item.key(), item.value());
  return weights;
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& path,
                  const std::map<std::string, std::string>& metadata, Links links) {
  save_safetensors(path, named_weights(module), metadata, links);
}

void load_weights(const std::map<std::string, at::Tensor>& own,
                  const std::map<std::string, at::Tensor>& weights, const std::string& from) {
  std::map<std::string, Described> stored;
  for (const auto& [name, tensor] : weights)
    stored.emplace(name, Described{tensor.scalar_type(), tensor.sizes()});
  check_fit(stored, own, from);
  const at::NoGradGuard no_grad;
  for (const auto& [name, weight] : own) weight.copy_(weights.at(name));
}

void load_weights(torch::nn::Module& module, const std::map<std::string, at::Tensor>& weights,
                  const std::string& from) {
  load_weights(named_weights(module), weights, from);
}

void load_weights(torch::nn::Module& module, const std::filesystem::path& path) {
  load_weights(named_weights(module), path, [](const std::string& name) { return name; });
}

void load_weights(const std::map<std::string, at::Tensor>& own, const std::filesystem::path& path,
                  const OwnName& own_name) {
  const SafetensorsModel file(path);
  std::map<std::string, Described> stored;
  std::map<std::string, std::string> names;  // of the file, by the module's
  for (const auto& [name, entry] : file.entries()) {
    const std::string to = own_name(name);
    if (to.empty()) continue;
    TORCH_CHECK_VALUE(names.emplace(to, name).second, "load_weights: '", path.string(), "' has the weight '",
                      fit_for_message(to), "' twice, as '", fit_for_message(names[to]), "' and '",
                      fit_for_message(name), "'; remove one of them");
    stored.emplace(to, Described{entry.dtype, entry.shape});
  }
  check_fit(stored, own, path.string());
  const at::NoGradGuard no_grad;
  for (const auto& [name, weight] : own) weight.copy_(file.read(names.at(name)));
}

}  // namespace mantissa
