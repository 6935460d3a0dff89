#include "mantissa/lora/lora_model.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>

#include "mantissa/core/suggest.h"
#include "mantissa/lora/state_internal.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa {
namespace {

using lora::Adapter;
using lora::FoundLayer;
using lora::Layer;

constexpr const char* kA = "lora_A";
constexpr const char* kB = "lora_B";
constexpr const char* kMagnitude = "lora_magnitude_vector";

at::TensorOptions float32_on(at::Device device) { return at::TensorOptions(at::kFloat).device(device); }

/// Fills in the initial values, which are PEFT's: the new adapter changes nothing.
LayerValues complete(LayerValues values, const torch::nn::LinearImpl& layer, int64_t rank, bool use_dora) {
  const at::NoGradGuard no_grad;
  const at::Device device = layer.weight.device();
  if (!values.a.defined()) {
    values.a = at::empty({rank, layer.weight.size(1)}, float32_on(device));
    // The bound of a layer without inputs would be infinite.
    if (values.a.numel() > 0) torch::nn::init::kaiming_uniform_(values.a, std::sqrt(5.0));
  }
  if (!values.b.defined()) values.b = at::zeros({layer.weight.size(0), rank}, float32_on(device));
  if (use_dora && !values.magnitude.defined())
    values.magnitude = lora::row_lengths(lora::values_of(base_weight(layer.weight), at::kFloat));
  for (at::Tensor* const tensor : {&values.a, &values.b, &values.magnitude})
    if (tensor->defined()) *tensor = tensor->to(device);
  return values;
}

/// Warns, once for all layers, of a rank above what a layer's weight can have. B A then takes more memory than a change
/// of full rank, and reaches no change that the smaller rank would not. No rank suits an empty weight better.
void warn_of_large_ranks(const std::vector<FoundLayer>& layers, const LoraConfig& config) {
  const auto full_rank = [](const FoundLayer& each) {
    return std::min(each.module->weight.size(0), each.module->weight.size(1));
  };
  const auto is_above = [&](const FoundLayer& each) {
    return full_rank(each) > 0 && config.rank_of(each.name) > full_rank(each);
  };
  const auto first = std::find_if(layers.begin(), layers.end(), is_above);
  if (first == layers.end()) return;
  const auto others = std::count_if(first + 1, layers.end(), is_above);
  TORCH_WARN("LoRA: r=", config.rank_of(first->name), " is above ", full_rank(*first),
             ", the smaller side of the weight of '", first->name, "' ", first->module->weight.sizes(),
             others == 0 ? "" : c10::str(" (and of ", others, " more layer", others == 1 ? "" : "s", ")"),
             "; a rank above that only costs memory: choose at most ", full_rank(*first),
             " for this layer, or give it no adapter");
}

/// Returns the child of `layer` that holds the factors of one kind, and makes it if necessary.
std::shared_ptr<lora::Factors> factors_of(torch::nn::LinearImpl& layer, const char* kind) {
  const auto children = layer.named_children();
  if (const auto* const found = children.find(kind)) return std::dynamic_pointer_cast<lora::Factors>(*found);
  auto made = layer.register_module(kind, std::make_shared<lora::Factors>());
  made->train(layer.is_training());
  return made;
}

void remove_factor(torch::nn::LinearImpl& layer, const char* kind, const std::string& adapter) {
  const auto children = layer.named_children();
  const auto* const found = children.find(kind);
  if (!found) return;
  if ((*found)->named_children().contains(adapter)) (*found)->unregister_module(adapter);
  if ((*found)->named_children().is_empty()) layer.unregister_module(kind);
}

}  // namespace

LoraModel::LoraModel(torch::nn::Module& model) : state_(std::make_unique<State>(model)) {}

LoraModel::LoraModel(torch::nn::Module& model, const LoraConfig& config, const std::string& adapter_name)
    : LoraModel(model) {
  add_adapter(adapter_name, config);
  set_adapter(adapter_name);
}

LoraModel::LoraModel(LoraModel&&) noexcept = default;
LoraModel& LoraModel::operator=(LoraModel&&) noexcept = default;
LoraModel::~LoraModel() = default;

void LoraModel::State::check_new(const std::string& name) const {
  TORCH_CHECK_VALUE(!name.empty() && name.find('.') == std::string::npos, "LoRA: '", name,
                    "' is no name for an adapter; give one without dots");
  TORCH_CHECK_VALUE(!known.contains(name), "LoRA: the model has an adapter '", name,
                    "' already; choose another name, or delete_adapter() first");
}

const KnownAdapter& LoraModel::State::find(const char* function, const std::string& name) const {
  const auto found = known.find(name);
  TORCH_CHECK_VALUE(found != known.end(), function, ": the model has no adapter '", name, "'",
                    did_you_mean(name, keys_of(known)), "; it has ",
                    known.empty() ? "none" : join_names(keys_of(known)));
  return found->second;
}

void LoraModel::State::check_not_merged(const char* function) const {
  TORCH_CHECK_VALUE(!merged, function,
                    ": the adapters are merged into the weights; call unmerge_adapter() first");
}

Layer* LoraModel::State::find_layer(const torch::nn::LinearImpl* module) {
  const auto found = std::find_if(layers.begin(), layers.end(),
                                  [&](const Layer& each) { return each.module.get() == module; });
  return found == layers.end() ? nullptr : &*found;
}

void LoraModel::State::add(const std::string& name, const KnownAdapter& adapter,
                           const std::vector<FoundLayer>& found,
                           const std::map<std::string, LayerValues>& values) {
  check_not_merged("add_adapter");
  std::vector<LayerValues> complete_values;
  for (const FoundLayer& each : found) {
    TORCH_CHECK_VALUE(find_layer(each.module.get()) || !each.module->named_children().contains(kA), "LoRA: '",
                      each.name, "' has adapters of another LoraModel; add yours with its add_adapter()");
    const auto given = values.find(each.name);
    complete_values.push_back(complete(given == values.end() ? LayerValues() : given->second, *each.module,
                                       adapter.config.rank_of(each.name), adapter.config.use_dora));
  }
  if (known.empty()) {
    for (const at::Tensor& parameter : model.parameters()) {
      if (!parameter.requires_grad()) continue;
      frozen.push_back(parameter);
      parameter.set_requires_grad(false);
    }
  }
  for (size_t i = 0; i < found.size(); ++i) {
    torch::nn::LinearImpl& module = *found[i].module;
    Layer* layer = find_layer(&module);
    if (!layer) layer = &layers.emplace_back(Layer{found[i].name, found[i].module});
    const auto made =
        std::make_shared<Adapter>(Adapter{.name = name,
                                          .scaling = adapter.config.scaling_of(found[i].name),
                                          .dropout = adapter.config.lora_dropout,
                                          .a = factors_of(module, kA)->add(name, complete_values[i].a),
                                          .b = factors_of(module, kB)->add(name, complete_values[i].b)});
    if (complete_values[i].magnitude.defined())
      made->magnitude = factors_of(module, kMagnitude)->add(name, complete_values[i].magnitude);
    made->set_requires_grad(false);
    layer->adapters.emplace(name, made);
  }
  known.emplace(name, adapter);
}

void LoraModel::State::apply() {
  for (const Layer& layer : layers) {
    std::vector<lora::AdapterPtr> computed;
    for (const auto& [name, adapter] : layer.adapters) {
      const bool is_chosen = std::find(active.begin(), active.end(), name) != active.end();
      const bool is_active = enabled && is_chosen;
      if (is_active) computed.push_back(adapter);
      adapter->set_requires_grad(is_active && known.at(name).is_trainable);
      // Else an optimizer would go on moving it, by momentum and decay. disable_adapters() may only be a pause.
      if (!is_chosen) adapter->drop_gradients();
    }
    const at::Tensor base = base_weight(layer.module->weight);
    if (computed.empty()) {
      if (is_adapted(layer.module->weight)) replace_weight(layer.module->weight, base);
    } else {
      const auto data = std::make_shared<lora::LoraWeight>(base, std::move(computed));
      replace_weight(layer.module->weight, make_packed_weight(data, base.scalar_type()));
    }
  }
}

void LoraModel::State::remove(const std::string& name) {
  for (Layer& layer : layers) {
    if (layer.adapters.erase(name) == 0) continue;
    for (const char* const kind : {kA, kB, kMagnitude}) remove_factor(*layer.module, kind, name);
  }
  known.erase(name);
  std::erase(active, name);
}

void LoraModel::State::forget_all() {
  for (const std::string& name : keys_of(known)) remove(name);
  layers.clear();
  for (const at::Tensor& parameter : frozen)
    if (!is_packed(parameter)) parameter.set_requires_grad(true);
  frozen.clear();
  merged = false;
  enabled = true;
}

void LoraModel::add_adapter(const std::string& adapter_name, const LoraConfig& config) {
  check_lora_config(config);
  state_->check_new(adapter_name);
  const std::vector<FoundLayer> targets = lora::find_targets(state_->model, config, /*every_name=*/true);
  state_->add(adapter_name, {config}, targets, {});
  warn_of_large_ranks(targets, config);
}

void LoraModel::delete_adapter(const std::string& adapter_name) {
  static_cast<void>(state_->find("delete_adapter", adapter_name));
  state_->check_not_merged("delete_adapter");
  if (state_->known.size() == 1) return unload();
  std::erase(state_->active, adapter_name);
  state_->apply();
  state_->remove(adapter_name);
  std::erase_if(state_->layers, [](const Layer& layer) { return layer.adapters.empty(); });
}

void LoraModel::set_adapter(const std::string& adapter_name) { set_adapters({adapter_name}); }

void LoraModel::set_adapters(const std::vector<std::string>& adapter_names) {
  for (const std::string& name : adapter_names) static_cast<void>(state_->find("set_adapter", name));
  const std::set<std::string> distinct(adapter_names.begin(), adapter_names.end());
  TORCH_CHECK_VALUE(!distinct.empty() && distinct.size() == adapter_names.size(),
                    "set_adapter: give at least one adapter, and each once; disable_adapters() computes "
                    "without any");
  state_->check_not_merged("set_adapter");
  state_->active = adapter_names;
  state_->apply();
}

void LoraModel::disable_adapters() {
  state_->check_not_merged("disable_adapters");
  state_->enabled = false;
  state_->apply();
}

void LoraModel::enable_adapters() {
  state_->check_not_merged("enable_adapters");
  state_->enabled = true;
  state_->apply();
}

std::vector<std::string> LoraModel::adapters() const { return keys_of(state_->known); }
const std::vector<std::string>& LoraModel::active_adapters() const { return state_->active; }
bool LoraModel::is_merged() const { return state_->merged; }

const LoraConfig& LoraModel::config(const std::string& adapter_name) const {
  return state_->find("config", adapter_name).config;
}

std::vector<std::string> LoraModel::layers(const std::string& adapter_name) const {
  static_cast<void>(state_->find("layers", adapter_name));
  std::vector<std::string> names;
  for (const Layer& layer : state_->layers)
    if (layer.adapters.contains(adapter_name)) names.push_back(layer.name);
  return names;
}

std::pair<int64_t, int64_t> LoraModel::get_nb_trainable_parameters() const {
  int64_t trained = 0, all = 0;
  for (const at::Tensor& parameter : state_->model.parameters()) {
    all += parameter.numel();
    if (parameter.requires_grad()) trained += parameter.numel();
  }
  return {trained, all};
}

}  // namespace mantissa
