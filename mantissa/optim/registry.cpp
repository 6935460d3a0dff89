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

LionOptions lion_options(const OptimizerSettings& s) {
  return LionOptions(*s.lr).betas({*s.beta1, *s.beta2}).weight_decay(*s.weight_decay);
}

torch::optim::RMSpropOptions rmsprop_options(const OptimizerSettings& s) {
  return torch::optim::RMSpropOptions(*s.lr).alpha(*s.alpha).eps(*s.eps).weight_decay(*s.weight_decay);
}

/// Adagrad8bit takes no lr_decay.
AdagradOptions adagrad_options(const OptimizerSettings& s) {
  return AdagradOptions(*s.lr).lr_decay(s.lr_decay.value_or(0)).eps(*s.eps).weight_decay(*s.weight_decay);
}

FusedOptions fused_options(const OptimizerSettings& s) {
  return {.stochastic_rounding = *s.stochastic_rounding, .seed = s.seed};
}

LowBitOptions low_bit_options(const OptimizerSettings& s) {
  return {.min_8bit_size = *s.min_8bit_size, .stochastic_rounding = *s.stochastic_rounding, .seed = s.seed};
}

/// Makes an optimizer from its parameters and from what each of `options` takes from the settings.
template <typename Optimizer, auto... options>
Made make(Tensors parameters, const OptimizerSettings& s, const Tensors& /*not_matrices*/) {
  return std::make_unique<Optimizer>(std::move(parameters), options(s)...);
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

/// Makes Muon or Muon8bit.
template <typename Optimizer, auto options>
// NOLINTNEXTLINE(performance-unnecessary-value-param): all functions of the table take what they may keep
Made make_muon(Tensors parameters, const OptimizerSettings& s, const Tensors& not_matrices) {
  return std::make_unique<Optimizer>(muon_groups(parameters, s, not_matrices), MuonOptions(*s.lr),
                                     options(s));
}

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

// The defaults of an algorithm, which its variants share.
constexpr OptimizerSettings kSgdDefaults{.lr = 1e-3, .momentum = 0, .weight_decay = 0};
constexpr OptimizerSettings kAdamDefaults{
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0};
constexpr OptimizerSettings kAdamWDefaults{
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2};
constexpr OptimizerSettings kAdagradDefaults{.lr = 1e-2, .eps = 1e-10, .weight_decay = 0};
constexpr OptimizerSettings kLionDefaults{.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0};
constexpr OptimizerSettings kRmspropDefaults{.lr = 1e-2, .alpha = 0.99, .eps = 1e-8, .weight_decay = 0};
constexpr OptimizerSettings kMuonDefaults{
    .lr = 1e-3, .momentum = 0.95, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};

/// The defaults of a fused optimizer.
OptimizerSettings fused(OptimizerSettings defaults) {
  defaults.stochastic_rounding = false;
  return defaults;
}

/// The defaults of an optimizer with 4- or 8-bit states.
OptimizerSettings low_bit(OptimizerSettings defaults) {
  defaults.min_8bit_size = 4096;
  return fused(defaults);
}

OptimizerSettings with_lr_decay(OptimizerSettings defaults) {
  defaults.lr_decay = 0;
  return defaults;
}

OptimizerSettings with_momentum(OptimizerSettings defaults, double momentum) {
  defaults.momentum = momentum;
  return defaults;
}

}  // namespace

const std::vector<OptimizerEntry>& optimizers() {
  static const std::vector<OptimizerEntry> table = {
      {.name = "sgd",
       .summary = "stochastic gradient descent with momentum",
       .defaults = kSgdDefaults,
       .make = &make<SGD, sgd_options>},
      {.name = "adamw",
       .summary = "Adam with decoupled weight decay",
       .defaults = kAdamWDefaults,
       .make = &make<AdamW, adam_options>,
       .squares_gradients = true},
      {.name = "adam",
       .summary = "Adam, whose weight decay is added to the gradient",
       .defaults = kAdamDefaults,
       .make = &make<Adam, adam_options>,
       .squares_gradients = true},
      {.name = "fused-sgd",
       .summary = "sgd in one kernel call, with stochastic rounding by choice",
       .defaults = fused(kSgdDefaults),
       .make = &make<FusedSGD, sgd_options, fused_options>},
      {.name = "fused-adamw",
       .summary = "adamw in one kernel call, with stochastic rounding by choice",
       .defaults = fused(kAdamWDefaults),
       .make = &make<FusedAdamW, adam_options, fused_options>,
       .squares_gradients = true},
      {.name = "fused-adam",
       .summary = "adam in one kernel call, with stochastic rounding by choice",
       .defaults = fused(kAdamDefaults),
       .make = &make<FusedAdam, adam_options, fused_options>,
       .squares_gradients = true},
      {.name = "fused-adagrad",
       .summary = "Adagrad in one kernel call, with stochastic rounding by choice",
       .defaults = fused(with_lr_decay(kAdagradDefaults)),
       .make = &make<FusedAdagrad, adagrad_options, fused_options>,
       .squares_gradients = true},
      {.name = "adam8bit",
       .summary = "Adam with 8-bit states",
       .defaults = low_bit(kAdamDefaults),
       .make = &make<Adam8bit, adam_options, low_bit_options>},
      {.name = "adamw8bit",
       .summary = "adamw with 8-bit states",
       .defaults = low_bit(kAdamWDefaults),
       .make = &make<AdamW8bit, adam_options, low_bit_options>},
      {.name = "lion8bit",
       .summary = "Lion with an 8-bit state",
       .defaults = low_bit(kLionDefaults),
       .make = &make<Lion8bit, lion_options, low_bit_options>},
      {.name = "sgd8bit",
       .summary = "sgd with an 8-bit momentum",
       .defaults = low_bit(with_momentum(kSgdDefaults, 0.9)),
       .make = &make<SGD8bit, sgd_options, low_bit_options>,
       .for_momentum_0 = "fused-sgd"},
      {.name = "rmsprop8bit",
       .summary = "RMSprop with an 8-bit state",
       .defaults = low_bit(kRmspropDefaults),
       .make = &make<RMSprop8bit, rmsprop_options, low_bit_options>},
      {.name = "adagrad8bit",
       .summary = "Adagrad with an 8-bit state",
       .defaults = low_bit(kAdagradDefaults),
       .make = &make<Adagrad8bit, adagrad_options, low_bit_options>},
      {.name = "adam4bit",
       .summary = "adam with 4-bit states",
       .defaults = low_bit(kAdamDefaults),
       .make = &make<Adam4bit, adam_options, low_bit_options>},
      {.name = "adamw4bit",
       .summary = "adamw with 4-bit states",
       .defaults = low_bit(kAdamWDefaults),
       .make = &make<AdamW4bit, adam_options, low_bit_options>},
      {.name = "muon",
       .summary = "orthogonal steps for the matrices of layers, AdamW for the rest",
       .defaults = fused(kMuonDefaults),
       .make = &make_muon<Muon, fused_options>},
      {.name = "muon8bit",
       .summary = "muon with 8-bit states",
       .defaults = low_bit(kMuonDefaults),
       .make = &make_muon<Muon8bit, low_bit_options>},
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
