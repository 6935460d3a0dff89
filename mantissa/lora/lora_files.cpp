#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/make_folders.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/lora/adapter_files.h"
#include "mantissa/lora/state_internal.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;
using lora::FoundLayer;
using lora::Layer;

constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kSuffixA = ".lora_A.weight";
constexpr const char* kSuffixB = ".lora_B.weight";
constexpr const char* kSuffixMagnitude = ".lora_magnitude_vector";

/// An adapter's folder while it is checked and read.
class AdapterFolder {
 public:
  explicit AdapterFolder(const fs::path& folder)
      : config_(load_adapter_config(folder)),
        path_((folder / kAdapterWeights).string()),
        file_(folder / kAdapterWeights) {
    for (const auto& [key, entry] : file_.entries()) layers_.insert(layer_of(key));
    TORCH_CHECK_VALUE(!layers_.empty(), "load_adapter: '", path_, "' holds no adapter; save it again");
  }

  const LoraConfig& config() const { return config_; }

  /// Returns the layers of `model` that the file has weights for.
  std::vector<FoundLayer> find_layers(const torch::nn::Module& model) const {
    auto found = lora::find_layers(model, {layers_.begin(), layers_.end()}, "load_adapter: '" + path_ + "'");
    // PEFT leaves a model's output layer out of all-linear, so the file decides which layers those are.
    if (config_.target_modules.is_all_linear()) return found;
    std::set<std::string> others = layers_;
    for (const FoundLayer& each : lora::find_targets(model, config_, /*every_name=*/false)) {
      TORCH_CHECK_VALUE(layers_.contains(each.name), "load_adapter: '", path_, "' lacks weights for '",
                        each.name, "', which the target_modules of its adapter_config.json (",
                        config_.target_modules.text(), ") include; it belongs to another model");
      others.erase(each.name);
    }
    check_no_others({others.begin(), others.end()});
    return found;
  }

  /// Returns the file's tensors for a layer, checked against the layer's shape.
  LayerValues read(const FoundLayer& layer) const {
    const int64_t rank = config_.rank_of(layer.name);
    const at::Tensor& weight = layer.module->weight;
    LayerValues values{tensor(layer.name, kSuffixA, {rank, weight.size(1)}),
                       tensor(layer.name, kSuffixB, {weight.size(0), rank}),
                       {}};
    const bool has_magnitude = file_.entries().contains(kPrefix + layer.name + kSuffixMagnitude);
    TORCH_CHECK_VALUE(has_magnitude == config_.use_dora, "load_adapter: '", path_, "' has ",
                      has_magnitude ? "a" : "no", " magnitude for '", layer.name,
                      "', and use_dora in its adapter_config.json is ", config_.use_dora ? "true" : "false",
                      "; give the two files that were saved together");
    if (has_magnitude) values.magnitude = tensor(layer.name, kSuffixMagnitude, {weight.size(0)});
    return values;
  }

 private:
  /// Throws if the file has weights for layers that its settings leave out. PEFT ignores these weights.
  void check_no_others(const std::vector<std::string>& others) const {
    constexpr size_t kShown = 3;
    const size_t shown = std::min(others.size(), kShown);
    std::string names = join_names({others.begin(), others.begin() + static_cast<std::ptrdiff_t>(shown)});
    if (others.size() > shown) names += " and " + std::to_string(others.size() - shown) + " more";
    TORCH_CHECK_VALUE(
        others.empty(), "load_adapter: '", path_, "' has weights for ", names,
        ", which the target_modules of its adapter_config.json leave out; add the layers to its "
        "target_modules, or give the two files that were saved together");
  }

  std::string layer_of(const std::string& key) const {
    const std::string prefix = kPrefix;
    for (const std::string suffix : {kSuffixA, kSuffixB, kSuffixMagnitude})
      if (key.starts_with(prefix) && key.ends_with(suffix) && key.size() > prefix.size() + suffix.size())
        return key.substr(prefix.size(), key.size() - prefix.size() - suffix.size());
    TORCH_CHECK_VALUE(false, "load_adapter: '", path_, "' has the tensor '", key.substr(0, 200),
                      "', which does not belong to an adapter of a linear layer; such names are ", kPrefix,
                      "LAYER", kSuffixA, ", ", kSuffixB, " or ", kSuffixMagnitude);
  }

  at::Tensor tensor(const std::string& layer, const char* suffix, at::IntArrayRef sizes) const {
    const std::string key = kPrefix + layer + suffix;
    const auto entry = file_.entries().find(key);
    TORCH_CHECK_VALUE(entry != file_.entries().end(), "load_adapter: '", path_, "' lacks '", key,
                      "'; save the adapter again");
    TORCH_CHECK_VALUE(entry->second.shape == sizes, "load_adapter: '", path_, "': '", key, "' is ",
                      at::IntArrayRef(entry->second.shape), ", and the layer, with rank ",
                      config_.rank_of(layer), " of adapter_config.json, needs ", sizes,
                      "; give the model and the files that belong together");
    TORCH_CHECK_VALUE(c10::isFloatingType(entry->second.dtype), "load_adapter: '", path_, "': '", key,
                      "' is ", entry->second.dtype,
                      "; the tensors of an adapter are floating-point numbers: save it again");
    at::Tensor values = file_.read(key).to(at::kFloat);
    TORCH_CHECK_VALUE(at::isfinite(values).all().item<bool>(), "load_adapter: '", path_, "': '", key,
                      "' has nan or inf; give a file from before its training diverged");
    return values;
  }

  const LoraConfig config_;
  const std::string path_;
  const SafetensorsFile file_;
  std::set<std::string> layers_;
};

/// Returns the adapter's tensors under PEFT's names.
std::map<std::string, at::Tensor> tensors_of(const std::vector<Layer>& layers, const std::string& adapter) {
  std::map<std::string, at::Tensor> tensors;
  for (const Layer& layer : layers) {
    const auto found = layer.adapters.find(adapter);
    if (found == layer.adapters.end()) continue;
    const lora::Adapter& each = *found->second;
    tensors[kPrefix + layer.name + kSuffixA] = each.a->weight.detach();
    tensors[kPrefix + layer.name + kSuffixB] = each.b->weight.detach();
    if (each.magnitude) tensors[kPrefix + layer.name + kSuffixMagnitude] = each.magnitude->weight.detach();
  }
  return tensors;
}

}  // namespace

LoraConfig load_adapter_config(const fs::path& folder) {
  const fs::path path = folder / kAdapterConfig;
  std::error_code error;
  TORCH_CHECK_VALUE(fs::is_regular_file(path, error), "'", folder.string(), "' holds no adapter: it has no ",
                    kAdapterConfig,
                    "; give the folder that save_pretrained() or `mantissa fit --lora` wrote (adapter in the "
                    "run's folder)");
  constexpr uintmax_t kMaxBytes = 16 << 20;
  TORCH_CHECK_VALUE(fs::file_size(path, error) <= kMaxBytes && !error, "'", path.string(),
                    "' is too large for an adapter's settings; give the folder that save_pretrained() wrote");
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return parse_adapter_config(text, path.string());
}

void LoraModel::load_adapter(const fs::path& folder, const std::string& adapter_name, bool is_trainable) {
  state_->check_new(adapter_name);
  const at::NoGradGuard no_grad;
  const AdapterFolder saved(folder);
  const std::vector<FoundLayer> found = saved.find_layers(state_->model);
  std::map<std::string, LayerValues> values;
  for (const FoundLayer& layer : found) values.emplace(layer.name, saved.read(layer));
  state_->add(adapter_name, {saved.config(), is_trainable}, found, values);
}

LoraModel LoraModel::from_pretrained(torch::nn::Module& model, const fs::path& folder,
                                     const std::string& adapter_name, bool is_trainable) {
  LoraModel made(model);
  made.load_adapter(folder, adapter_name, is_trainable);
  made.set_adapter(adapter_name);
  return made;
}

void LoraModel::save_pretrained(const fs::path& folder, const std::string& adapter_name) const {
  LoraConfig config = state_->find("save_pretrained", adapter_name).config;
  // As PEFT does: what all-linear means depends on the model.
  if (config.target_modules.is_all_linear()) config.target_modules = layers(adapter_name);
  const std::string text = to_adapter_config(config);
  std::vector<fs::path> made;
  const std::error_code error = make_folders(folder, made);
  TORCH_CHECK(!error, "cannot make the folder '", folder.string(), "': ", error.message(),
              "; choose another folder");
  save_safetensors(folder / kAdapterWeights, tensors_of(state_->layers, adapter_name), {{"format", "pt"}});
  write_file_atomically(folder / kAdapterConfig, text);
}

}  // namespace mantissa
