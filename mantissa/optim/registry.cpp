#include "mantissa/optim/registry.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/modules/embedding.h>

#include "mantissa/core/suggest.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/muon.h"
#include "mantissa/optim/optimizers_4bit.h"
#include "mantissa/optim/sgd.h"

namespace mantissa {
namespace {

using Made = std::unique_ptr<torch::optim::Optimizer>;
using Tensors = std::vector<at::Tensor>;

SGDOptions sgd_options(const OptimizerSettings& s) {
  return SGDOptions(*s.lr).momentum(*s.momentum).weight_decay(*s.weight_decay);
}

/// The options of Adam and, because `settings` are complete, of AdamW.
AdamOptions adam_options(const OptimizerSettings& s) {
  return AdamOptions(*s.lr).betas({*s.beta1, *s.beta2}).eps(*s.eps).weight_decay(*s.weight_decay);
}

AdagradOptions adagrad_options(const OptimizerSettings& s) {
  return AdagradOptions(*s.lr).lr_decay(*s.lr_decay).eps(*s.eps).weight_decay(*s.weight_decay);
}

FusedOptions fused_options(const OptimizerSettings& s) {
  return {.stochastic_rounding = *s.stochastic_rounding, .seed = s.seed};
}

Made make_sgd(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<SGD>(std::move(parameters), sgd_options(s));
}

template <typename AdamOrAdamW>
Made make_adam(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<AdamOrAdamW>(std::move(parameters), adam_options(s));
}

Made make_fused_sgd(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<FusedSGD>(std::move(parameters), sgd_options(s), fused_options(s));
}

template <typename AdamOrAdamW>
Made make_fused_adam(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<AdamOrAdamW>(std::move(parameters), adam_options(s), fused_options(s));
}

Made make_fused_adagrad(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<FusedAdagrad>(std::move(parameters), adagrad_options(s), fused_options(s));
}

LowBitOptions options_8bit(const OptimizerSettings& s) {
  return {.min_8bit_size = *s.min_8bit_size, .stochastic_rounding = *s.stochastic_rounding, .seed = s.seed};
}

/// With 8-bit or 4-bit states.
template <typename AdamOrAdamW>
Made make_low_bit_adam(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<AdamOrAdamW>(std::move(parameters), adam_options(s), options_8bit(s));
}

Made make_lion8bit(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  const LionOptions options = LionOptions(*s.lr).betas({*s.beta1, *s.beta2}).weight_decay(*s.weight_decay);
  return std::make_unique<Lion8bit>(std::move(parameters), options, options_8bit(s));
}

Made make_sgd8bit(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<SGD8bit>(std::move(parameters), sgd_options(s), options_8bit(s));
}

Made make_rmsprop8bit(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  const auto options =
      torch::optim::RMSpropOptions(*s.lr).alpha(*s.alpha).eps(*s.eps).weight_decay(*s.weight_decay);
  return std::make_unique<RMSprop8bit>(std::move(parameters), options, options_8bit(s));
}

Made make_adagrad8bit(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  const AdagradOptions options = AdagradOptions(*s.lr).eps(*s.eps).weight_decay(*s.weight_decay);
  return std::make_unique<Adagrad8bit>(std::move(parameters), options, options_8bit(s));
}

bool has(const Tensors& tensors, const at::Tensor& one) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& own) { return own.is_same(one); });
}

/// The matrices in one group, and the rest in another that AdamW steps; without those that would be empty. Both
/// have one learning rate, so that the update of a matrix is as large as AdamW's.
std::vector<torch::optim::OptimizerParamGroup> muon_groups(const Tensors& parameters,
                                                           const OptimizerSettings& s,
                                                           const Tensors& not_matrices) {
  Tensors matrices, others;
  for (const at::Tensor& parameter : parameters)
    (parameter.dim() == 2 && !has(not_matrices, parameter) ? matrices : others).push_back(parameter);
  const MuonOptions common = MuonOptions(*s.lr).weight_decay(*s.weight_decay).betas({*s.beta1, *s.beta2});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const auto add = [&](Tensors&& its, MuonOptions options) {
    if (its.empty()) return;
    groups.emplace_back(std::move(its), std::make_unique<MuonOptions>(std::move(options)));
  };
  add(std::move(matrices), MuonOptions(common).momentum(*s.momentum).adjust_lr_fn("match_rms_adamw"));
  add(std::move(others), MuonOptions(common).use_muon(false).eps(*s.eps));
  return groups;
}

// NOLINTBEGIN(performance-unnecessary-value-param): all functions of the table take what they may keep
Made make_muon(Tensors parameters, const OptimizerSettings& s, const Tensors& not_matrices) {
  return std::make_unique<Muon>(muon_groups(parameters, s, not_matrices), MuonOptions(*s.lr),
                                fused_options(s));
}

Made make_muon8bit(Tensors parameters, const OptimizerSettings& s, const Tensors& not_matrices) {
  return std::make_unique<Muon8bit>(muon_groups(parameters, s, not_matrices), MuonOptions(*s.lr),
                                    options_8bit(s));
}
// NOLINTEND(performance-unnecessary-value-param)

/// The weights of all embeddings in a module.
Tensors embeddings_in(const torch::nn::Module& module) {
  Tensors weights;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (const auto* const embedding = child->as<torch::nn::EmbeddingImpl>())
      weights.push_back(embedding->weight);
    if (const auto* const bag = child->as<torch::nn::EmbeddingBagImpl>()) weights.push_back(bag->weight);
  }
  return weights;
}

std::string settings_of(const OptimizerEntry& optimizer) {
  std::vector<std::string> names;
  for_each_setting([&](const char* name, auto) {
    if (optimizer.takes(name)) names.emplace_back(name);
  });
  return join_names(names);
}

}  // namespace

const std::vector<OptimizerEntry>& optimizers() {
  static const std::vector<OptimizerEntry> table = {
      {.name = "sgd",
       .summary = "stochastic gradient descent with momentum",
       .defaults = {.lr = 1e-3, .momentum = 0, .weight_decay = 0},
       .make = &make_sgd},
      {.name = "adamw",
       .summary = "Adam with decoupled weight decay",
       .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2},
       .make = &make_adam<AdamW>,
       .squares_gradients = true},
      {.name = "adam",
       .summary = "Adam, whose weight decay is added to the gradient",
       .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0},
       .make = &make_adam<Adam>,
       .squares_gradients = true},
      {.name = "fused-sgd",
       .summary = "sgd in one kernel call, with stochastic rounding by choice",
       .defaults = {.lr = 1e-3, .momentum = 0, .weight_decay = 0, .stochastic_rounding = false},
       .make = &make_fused_sgd},
      {.name = "fused-adamw",
       .summary = "adamw in one kernel call, with stochastic rounding by choice",
       .defaults = {.lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 1e-2,
                    .stochastic_rounding = false},
       .make = &make_fused_adam<FusedAdamW>,
       .squares_gradients = true},
      {.name = "fused-adam",
       .summary = "adam in one kernel call, with stochastic rounding by choice",
       .defaults = {.lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0,
                    .stochastic_rounding = false},
       .make = &make_fused_adam<FusedAdam>,
       .squares_gradients = true},
      {.name = "fused-adagrad",
       .summary = "Adagrad in one kernel call, with stochastic rounding by choice",
       .defaults = {.lr = 1e-2, .eps = 1e-10, .weight_decay = 0, .lr_decay = 0, .stochastic_rounding = false},
       .make = &make_fused_adagrad,
       .squares_gradients = true},
      {.name = "adam8bit",
       .summary = "Adam with 8-bit states",
       .defaults = {.lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_low_bit_adam<Adam8bit>},
      {.name = "adamw8bit",
       .summary = "adamw with 8-bit states",
       .defaults = {.lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 1e-2,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_low_bit_adam<AdamW8bit>},
      {.name = "lion8bit",
       .summary = "Lion with an 8-bit state",
       .defaults = {.lr = 1e-4,
                    .beta1 = 0.9,
                    .beta2 = 0.99,
                    .weight_decay = 0,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_lion8bit},
      {.name = "sgd8bit",
       .summary = "sgd with an 8-bit momentum",
       .defaults = {.lr = 1e-3,
                    .momentum = 0.9,
                    .weight_decay = 0,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_sgd8bit},
      {.name = "rmsprop8bit",
       .summary = "RMSprop with an 8-bit state",
       .defaults = {.lr = 1e-2,
                    .alpha = 0.99,
                    .eps = 1e-8,
                    .weight_decay = 0,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_rmsprop8bit},
      {.name = "adagrad8bit",
       .summary = "Adagrad with an 8-bit state",
       .defaults =
           {.lr = 1e-2, .eps = 1e-10, .weight_decay = 0, .min_8bit_size = 4096, .stochastic_rounding = false},
       .make = &make_adagrad8bit},
      {.name = "adam4bit",
       .summary = "adam with 4-bit states",
       .defaults = {.lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_low_bit_adam<Adam4bit>},
      {.name = "adamw4bit",
       .summary = "adamw with 4-bit states",
       .defaults = {.lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 1e-2,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_low_bit_adam<AdamW4bit>},
      {.name = "muon",
       .summary = "orthogonal steps for the matrices of layers, AdamW for the rest",
       .defaults = {.lr = 1e-3,
                    .momentum = 0.95,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .stochastic_rounding = false},
       .make = &make_muon},
      {.name = "muon8bit",
       .summary = "muon with 8-bit states",
       .defaults = {.lr = 1e-3,
                    .momentum = 0.95,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .min_8bit_size = 4096,
                    .stochastic_rounding = false},
       .make = &make_muon8bit},
  };
  return table;
}

bool OptimizerEntry::takes(std::string_view setting) const {
  bool found = false;
  for_each_setting([&](std::string_view name, auto member) {
    if (name == setting) found = (defaults.*member).has_value();
  });
  return setting == "seed" ? defaults.stochastic_rounding.has_value() : found;
}

const OptimizerEntry& find_optimizer(const std::string& name) {
  std::vector<std::string> names;
  for (const OptimizerEntry& entry : optimizers()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  TORCH_CHECK_VALUE(false, "optimizer '", name, "' is not available", did_you_mean(name, names),
                    "; choose from ", join_names(names));
}

OptimizerSettings settings_taken(const OptimizerEntry& optimizer, const OptimizerSettings& settings) {
  OptimizerSettings taken = settings;
  for_each_setting([&](const char* name, auto member) {
    if (!optimizer.takes(name)) (taken.*member).reset();
  });
  return taken;
}

namespace {

Made make_with(const std::string& name, Tensors parameters, const OptimizerSettings& settings,
               const Tensors& not_matrices) {
  const OptimizerEntry& entry = find_optimizer(name);
  OptimizerSettings complete = entry.defaults;
  for_each_setting([&](const char* setting, auto member) {
    if (!(settings.*member)) return;
    TORCH_CHECK_VALUE(entry.takes(setting), "optimizer '", name, "' takes no ", setting,
                      "; leave it out, or choose from ", settings_of(entry));
    complete.*member = settings.*member;
  });
  return entry.make(std::move(parameters), complete, not_matrices);
}

}  // namespace

Made make_optimizer(const std::string& name, Tensors parameters, const OptimizerSettings& settings) {
  return make_with(name, std::move(parameters), settings, {});
}

Made make_optimizer(const std::string& name, const torch::nn::Module& module,
                    const OptimizerSettings& settings) {
  return make_with(name, module.parameters(), settings, embeddings_in(module));
}

}  // namespace mantissa
