// The attentions of a module, whose two products compute in FP8 if the recipe has fp8_dpa.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "mantissa/precision/fp8_layers.h"
#include "mantissa/precision/layers_internal.h"

namespace mantissa {
namespace {

/// Returns why a mode leaves an attention as it is; "" if it does not.
std::string reason_for(const Attention& attention, const std::vector<std::string>& ignored) {
  const auto& rule = attention.module->attention_rule();
  if (std::dynamic_pointer_cast<const Fp8AttentionRule>(rule)) return "it was an FP8 attention before";
  if (rule) return "it has an arithmetic of its own: " + rule->description();
  return is_ignored(attention.name, ignored) ? "ignore_modules names it" : "";
}

}  // namespace

void Fp8Layers::convert_attentions(torch::nn::Module& module) {
  attentions_.erase_expired();
  for (const Attention& each : attentions_of(module)) {
    const auto users = std::dynamic_pointer_cast<const Fp8AttentionRule>(each.module->attention_rule());
    if (!users && !computes_attention(options_.recipe)) continue;
    const at::Tensor& identity = each.module->identity();
    LayerReport report{
        each.name.empty() ? "attention" : each.name, {}, {}, reason_for(each, options_.ignore_modules)};
    if (users || report.reason.empty()) report.products = Format::kFloat8E4M3;
    std::erase_if(rows_, [&](const Row& row) {
      return row.key._unsafe_get_target() == identity.unsafeGetTensorImpl();
    });
    rows_.push_back({report, WeakKey<at::Tensor>::weak(identity)});
    if (!report.products) continue;
    if (!attentions_.contains(identity)) {
      const Fp8AttentionState state = users ? users->state() : Fp8AttentionState(options_.recipe);
      const auto layer_of = [&](const char* product, const std::shared_ptr<Fp8LinearState>& its_state) {
        const std::string name = each.name.empty() ? product : each.name + "." + product;
        return make_layer(name, its_state, users != nullptr);
      };
      attentions_.try_emplace(identity, state, layer_of("scores", state.scores),
                              layer_of("context", state.context));
    }
    if (!users)
      each.module->set_attention_rule(std::make_shared<Fp8AttentionRule>(attentions_.find(identity)->state,
                                                                         /*belongs_to_mode=*/true));
  }
}

}  // namespace mantissa
