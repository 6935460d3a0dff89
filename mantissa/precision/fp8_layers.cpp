#include "mantissa/precision/fp8_layers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/core/suggest.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/fp8_weight.h"
#include "mantissa/precision/layers_internal.h"
#include "mantissa/precision/state_keys_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// Returns "fc" for "fc.weight", and any other name as it is: "weight" of a module that is a layer itself, and
/// "mlp.fc1_weight" of a layer with several weights.
std::string name_of(const Layer& layer) {
  constexpr std::string_view kEnd = ".weight";
  return layer.name.ends_with(kEnd) ? layer.name.substr(0, layer.name.size() - kEnd.size()) : layer.name;
}

std::set<const c10::TensorImpl*> weights_of(const std::vector<Layer>& layers) {
  std::set<const c10::TensorImpl*> weights;
  for (const Layer& layer : layers) weights.insert(layer.weight.unsafeGetTensorImpl());
  return weights;
}

/// Whether the user has marked the weight for training in FP8.
bool is_users_fp8(const at::Tensor& weight) {
  const WeightRulePtr rule = weight_rule(base_weight(weight));
  return rule && !rule->belongs_to_mode() && fp8_state_of(base_weight(weight));
}

/// Returns the seed of a layer's random numbers: another one for each layer, and the same one in a repetition of a run.
uint64_t seed_of(uint64_t number) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // odd, so that no two layers have the same seed
  return at::detail::getDefaultCPUGenerator().current_seed() + kStep * (number + 1);
}

/// Returns the number of steps of a saved layer's history; 0 without one.
int64_t history_len_of(const StateReader& saved) {
  const auto forward = saved.find("forward");
  return forward ? forward->at("amax_history").to_tensor().size(0) : 0;
}

/// What is to be done with a layer.
struct Plan {
  LayerReport report;
  at::Tensor weight;
  bool is_marked_by_user = false;
};

std::vector<Plan> plan(const torch::nn::Module& module, const Fp8LayerOptions& options) {
  const std::vector<Layer> all = layers_of(module, {});
  const auto chosen = weights_of(layers_of(module, {.ignore_modules = options.ignore_modules}));
  const bool has_fp8 =
      std::any_of(all.begin(), all.end(), [](const Layer& layer) { return is_users_fp8(layer.weight); });
  std::vector<Plan> plans;
  for (const Layer& layer : all) {
    const at::Tensor& weight = layer.weight;
    const at::Tensor base = base_weight(weight);  // of an adapter, or the weight itself
    const WeightRulePtr rule = weight_rule(base);
    const bool is_first = &layer == &all.front(), is_last = &layer == &all.back();
    std::string reason;
    if (is_users_fp8(weight)) {
      reason = "it was an FP8 layer before";
    } else if (is_packed(base)) {
      reason = "its weight is frozen and has an arithmetic of its own";
    } else if (rule && !rule->belongs_to_mode()) {
      reason = "its weight has an arithmetic of its own: " + rule->description();
    } else if (has_fp8) {
      reason = "the model has FP8 layers, so no other one is converted";
    } else if (!chosen.contains(weight.unsafeGetTensorImpl())) {
      reason = "ignore_modules names it";
    } else if (!options.first_and_last && (is_first || is_last)) {
      reason = std::string("it is the ") + (is_first ? "first" : "last") +
               " layer; fp8_first_and_last computes it in FP8, too";
    }
    Plan plan{{name_of(layer), weight.sizes().vec(), {}, reason}, weight, is_users_fp8(weight)};
    if (reason.empty() || plan.is_marked_by_user) plan.report.products = Format::kFloat8E4M3;
    plans.push_back(std::move(plan));
  }
  return plans;
}

/// Returns "DelayedScaling in HYBRID": what a state's scales belong to.
std::string scales_of(const Fp8Recipe& recipe) {
  return c10::str(recipe_name(recipe), " in ", fp8_format_name(recipe));
}
std::string scales_of(const StateReader& saved) {
  return saved.at("recipe").to_string() + " in " + saved.at("fp8_format").to_string();
}

/// Returns the entry of a state from which layers with this recipe can be loaded; nothing if there is none, or if it
/// belongs to another recipe or format.
std::optional<StateReader> usable_part(const StateReader& state, const Fp8Recipe& recipe) {
  const auto saved = state.find(kFp8StateKey);
  if (!saved || scales_of(*saved) != scales_of(recipe)) return std::nullopt;
  return saved->at("layers");
}

}  // namespace

Fp8Layers::Fp8Layers(std::string who, Fp8LayerOptions options)
    : who_(std::move(who)), options_(std::move(options)) {
  check_recipe(options_.recipe);
  if (options_.primary_weights) check_stores_weights(options_.recipe, Fp8Rounding::kNearest, who_);
}

void Fp8Layers::check(torch::nn::Module& module, bool is_cast) const {
  TORCH_CHECK_TYPE(has_layers(module, {}), who_, ": ", module.name(),
                   " has no torch::nn::Linear whose products could be computed in FP8; choose another mode");
  TORCH_CHECK_VALUE(
      !computes_attention(options_.recipe) || !attentions_of(module).empty(), who_,
      ": the recipe has fp8_dpa, and ", module.name(),
      " has no attention whose products could be computed in FP8: that is one of Mantissa's Gpt, "
      "MultiheadAttention or TransformerLayer, or of a module that derives from HasAttention; leave "
      "fp8_dpa out");
  for (const Plan& each : plan(module, options_)) {
    if (!each.report.products || each.is_marked_by_user) continue;
    const at::Tensor& weight = each.weight;
    const std::string where = c10::str(who_, ": the weight of '", each.report.name, "' is ");
    const at::ScalarType dtype = weight.scalar_type();
    TORCH_CHECK_VALUE(
        weight.is_leaf(), where,
        "computed by autograd, so it would be computed again; name the layer in ignore_modules");
    TORCH_CHECK_TYPE(
        is_cast || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, where, dtype,
        ", and FP8 products need Float, Half or BFloat16; convert it, or name the layer in ignore_modules");
  }
}

void Fp8Layers::convert(torch::nn::Module& module) {
  layers_.erase_expired();
  const std::vector<Plan> plans = plan(module, options_);
  // A module that is converted again has its rows once.
  std::set<const c10::TensorImpl*> weights;
  for (const Plan& each : plans) weights.insert(each.weight.unsafeGetTensorImpl());
  std::erase_if(rows_, [&](const Row& row) {
    return row.key.expired() || weights.contains(row.key._unsafe_get_target());
  });
  const auto shared =
      options_.primary_weights ? parameters_of_others(module) : std::set<const c10::TensorImpl*>();
  for (const Plan& each : plans) {
    rows_.push_back({each.report, WeakKey<at::Tensor>::weak(each.weight)});
    if (!each.report.products) continue;
    if (!layers_.contains(each.weight))
      layers_.try_emplace(each.weight,
                          make_layer(each.report.name,
                                     each.is_marked_by_user ? fp8_state_of(base_weight(each.weight))
                                                            : std::make_shared<Fp8LinearState>(
                                                                  options_.recipe, seed_of(states_made_++)),
                                     each.is_marked_by_user));
    if (each.is_marked_by_user) continue;
    const std::shared_ptr<Fp8LinearState>& state = layers_.find(each.weight)->state;
    state->set_native(options_.native);
    // The master weights begin with the values from before the quantization.
    if (options_.primary_weights && !is_adapted(each.weight) &&
        !shared.contains(each.weight.unsafeGetTensorImpl()))
      make_fp8_weight(each.weight, state, {.preserve_high_precision_init_val = each.weight.requires_grad()});
    mark_weight(base_weight(each.weight), std::make_shared<Fp8TrainingRule>(state, /*belongs_to_mode=*/true));
  }
  convert_attentions(module);
  warn_about_unmatched_names(module, options_.ignore_modules, who_);
  const bool converts =
      std::any_of(plans.begin(), plans.end(), [](const Plan& each) { return each.report.products; });
  if (!converts && !plans.empty())
    TORCH_WARN(who_, ": no layer of ", module.name(), " computes in FP8; '", plans[0].report.name,
               "' does not, because ", plans[0].report.reason);
}

std::vector<LayerReport> Fp8Layers::report() const {
  std::vector<LayerReport> report;
  for (const Row& row : rows_)
    if (!row.key.expired()) report.push_back(row.report);
  return report;
}

void Fp8Layers::sample(LayerSampling sampling) {
  for (const auto& [name, layer] : by_name()) layer->state->sample(sampling);
}

std::map<std::string, LayerStatistics> Fp8Layers::statistics() const {
  std::map<std::string, LayerStatistics> all;
  for (const auto& [name, layer] : by_name())
    if (LayerStatistics counted = layer->state->statistics(); !counted.tensors.empty())
      all.emplace(name, std::move(counted));
  return all;
}

std::string Fp8Layers::note(at::Device device) const {
  const FormatSupportInfo support = fp8_support(device, options_.recipe);
  const bool is_off = options_.native == Fp8Native::kOff && support.support == FormatSupport::kNative;
  const bool is_native = support.support == FormatSupport::kNative && !is_off;
  return c10::str("FP8 products (", recipe_name(options_.recipe), ") are ", is_native ? "native" : "emulated",
                  " on ", device, ": ", is_off ? "fp8_native is off" : support.reason);
}

StateDict Fp8Layers::Fp8Layer::first_state() const {
  return users_first_state.empty() ? Fp8LinearState(state->recipe(), first_seed).state_dict()
                                   : users_first_state;
}

Fp8Layers::Fp8Layer Fp8Layers::make_layer(const std::string& name, std::shared_ptr<Fp8LinearState> state,
                                          bool is_users) const {
  Fp8Layer layer{unused(name), std::move(state)};
  layer.first_seed = layer.state->seed();
  if (is_users) layer.users_first_state = snapshot(layer.state->state_dict());
  return layer;
}

std::string Fp8Layers::unused(const std::string& name) const {
  const auto used = by_name();
  std::string unused = name;
  for (int number = 2; used.contains(unused); ++number) unused = c10::str(name, "#", number);
  return unused;
}

std::map<std::string, const Fp8Layers::Fp8Layer*> Fp8Layers::by_name() const {
  std::map<std::string, const Fp8Layer*> layers;
  layers_.for_each(
      [&](const auto& /*weight*/, const Fp8Layer& layer) { layers.emplace(layer.name, &layer); });
  attentions_.for_each([&](const auto& /*identity*/, const Fp8Attention& attention) {
    for (const Fp8Layer* const layer : {&attention.scores, &attention.context})
      layers.emplace(layer->name, layer);
  });
  return layers;
}

void Fp8Layers::add_optimizer(const std::vector<at::Tensor>& weights) {
  for (const at::Tensor& weight : weights)
    if (Fp8Layer* const layer = layers_.find(weight)) layer->has_optimizer = true;
}

void Fp8Layers::end_step(const std::vector<at::Tensor>& weights, bool skipped) {
  add_optimizer(weights);  // for a loop that does not call setup_optimizer()
  std::set<const Fp8Layer*> stepped;
  for (const at::Tensor& weight : weights) stepped.insert(layers_.find(weight));
  std::vector<Fp8LinearState*> states;
  for (const auto& [name, layer] : by_name())
    if (stepped.contains(layer) || !layer->has_optimizer) states.push_back(layer->state.get());
  update_scales(states, reduction_, skipped ? GradientAmaxes::kNone : GradientAmaxes::kFinite);
}

StateDict Fp8Layers::state_dict() const {
  StateDict layers;
  for (const auto& [name, layer] : by_name()) layers.emplace(name, layer->state->state_dict());
  if (layers.empty()) return {};
  return {{kFp8StateKey, StateDict{{"recipe", recipe_name(options_.recipe)},
                                   {"fp8_format", fp8_format_name(options_.recipe)},
                                   {"layers", std::move(layers)}}}};
}

void Fp8Layers::check_state_dict(const StateReader& state) const {
  const auto saved = usable_part(state, options_.recipe);
  for (const auto& [name, layer] : by_name())
    if (const auto entry = saved ? saved->find(name) : std::nullopt)
      Fp8LinearState(layer->state->recipe()).load_state_dict(*entry);
}

std::vector<std::string> Fp8Layers::load_state_dict(const StateReader& state) {
  check_state_dict(state);
  const auto layers = by_name();
  if (layers.empty()) return {};  // the mode reports that the state is dropped
  if (const auto saved = usable_part(state, options_.recipe)) return load(*saved);
  for (const auto& [name, layer] : layers) {
    const StateDict first = layer->first_state();
    layer->state->load_state_dict(StateReader(first));
  }
  if (const auto saved = state.find(kFp8StateKey))
    return {c10::str("its FP8 state is that of ", scales_of(*saved),
                     " and is dropped, because this run uses ", scales_of(options_.recipe))};
  const bool is_delayed = std::holds_alternative<DelayedScaling>(options_.recipe);
  return is_delayed ? std::vector<std::string>{"it has no FP8 scales, so these start anew"}
                    : std::vector<std::string>();
}

std::vector<std::string> Fp8Layers::load(const StateReader& saved) {
  std::vector<std::string> lacking, differences;
  int64_t before = 0, now = 0;
  size_t used = 0;
  for (const auto& [name, layer] : by_name()) {
    const auto entry = saved.find(name);
    if (entry) {
      layer->state->load_state_dict(*entry);
    } else {
      const StateDict first = layer->first_state();
      layer->state->load_state_dict(StateReader(first));
      lacking.push_back(name);
      continue;
    }
    ++used;
    if (const int64_t steps = history_len_of(*entry),
        kept = history_len_of(StateReader(layer->state->state_dict()));
        steps != kept)
      before = steps, now = kept;
  }
  if (!lacking.empty())
    differences.push_back("it has no FP8 state of " + join_names(lacking) + ", which start anew");
  if (used < saved.size())
    differences.push_back(c10::str("its FP8 state of ", saved.size() - used,
                                   " layers that compute in high precision here is dropped"));
  if (now != 0)
    differences.push_back(c10::str("its FP8 histories of ", before, " steps ",
                                   before > now ? "are cut" : "are padded", " to ", now));
  return differences;
}

}  // namespace mantissa
