#include "mantissa/optim/optimizers_8bit.h"

#include <c10/util/Exception.h>
#include <torch/optim/serialize.h>

#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {

using kernels::UpdateRule;
using torch::optim::RMSpropOptions;

/// Every comparison is false for NaN, so NaN is refused too.
void validate(const char* optimizer, const LionOptions& options) {
  const auto [beta1, beta2] = options.betas();
  validate(optimizer, AdamOptions(options.lr()).betas({beta1, beta2}).weight_decay(options.weight_decay()));
}

void validate(const char* optimizer, const RMSpropOptions& options) {
  const auto check = [&](const char* name, double value, bool is_valid, const char* cure) {
    TORCH_CHECK_VALUE(is_valid, optimizer, ": ", name, " ", value, " is invalid; ", cure);
  };
  check("learning rate", options.lr(), options.lr() >= 0, "lr must be 0 or more");
  check("alpha", options.alpha(), options.alpha() >= 0 && options.alpha() < 1, "alpha lies in [0, 1)");
  check("eps", options.eps(), options.eps() >= 0, "eps must be 0 or more");
  check("weight_decay", options.weight_decay(), options.weight_decay() >= 0,
        "weight_decay must be 0 or more");
}

void LionOptions::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("lr", c10::IValue(lr_));
  archive.write("betas", c10::IValue(betas_));
  archive.write("weight_decay", c10::IValue(weight_decay_));
  archive.write("maximize", c10::IValue(maximize_));
}

void LionOptions::serialize(torch::serialize::InputArchive& archive) {
  read_if_present(archive, "lr", lr_);
  read_if_present(archive, "betas", betas_);
  read_if_present(archive, "weight_decay", weight_decay_);
  read_if_present(archive, "maximize", maximize_);
}

namespace {

/// What each optimizer's options mean. `kOption` is one that only files for this optimizer have.
template <typename Options>
struct Family;

template <>
struct Family<AdamOptions> {
  static constexpr LowBitForm kForm8bit = {UpdateRule::kAdam, 8, /*decouples_decay=*/true};
  static constexpr const char* kOption = "betas";

  static void check(const char* name, const AdamOptions& o) {
    TORCH_CHECK_VALUE(!o.amsgrad(), name,
                      ": amsgrad would need a third state, which is not kept in few bits; use FusedAdam, or"
                      " leave amsgrad out");
  }
  static LowBitHyperparameters read(const AdamOptions& o) {
    const auto [beta1, beta2] = o.betas();
    return {o.lr(), beta1, beta2, o.eps(), o.weight_decay(), o.maximize()};
  }
  static void write(AdamOptions& o, const LowBitHyperparameters& h) {
    o.lr(h.lr).betas({h.beta1, h.beta2}).eps(h.eps).weight_decay(h.weight_decay);
  }
};

template <>
struct Family<LionOptions> {
  static constexpr LowBitForm kForm8bit = {UpdateRule::kLion, 8, /*decouples_decay=*/true};
  static constexpr const char* kOption = "betas";

  static void check(const char* /*name*/, const LionOptions& /*options*/) {}
  static LowBitHyperparameters read(const LionOptions& o) {
    const auto [beta1, beta2] = o.betas();
    return {o.lr(), beta1, beta2, 0, o.weight_decay(), o.maximize()};
  }
  static void write(LionOptions& o, const LowBitHyperparameters& h) {
    o.lr(h.lr).betas({h.beta1, h.beta2}).weight_decay(h.weight_decay);
  }
};

template <>
struct Family<SGDOptions> {
  static constexpr LowBitForm kForm8bit = {UpdateRule::kSGD, 8, /*decouples_decay=*/false};
  static constexpr const char* kOption = "nesterov";

  static void check(const char* name, const SGDOptions& o) {
    TORCH_CHECK_VALUE(o.momentum() > 0 && o.momentum() < 1, name, ": momentum ", o.momentum(),
                      " is invalid; choose a number above 0 and below 1, or FusedSGD, which needs no state"
                      " without momentum");
    TORCH_CHECK_VALUE(o.dampening() == 0 && !o.nesterov(), name, ": dampening ", o.dampening(),
                      " and nesterov ", o.nesterov(), " have no 8-bit form; leave them out, or use FusedSGD");
  }
  static LowBitHyperparameters read(const SGDOptions& o) {
    return {o.lr(), o.momentum(), 0, 0, o.weight_decay(), o.maximize()};
  }
  static void write(SGDOptions& o, const LowBitHyperparameters& h) {
    o.lr(h.lr).momentum(h.beta1).weight_decay(h.weight_decay);
  }
};

template <>
struct Family<RMSpropOptions> {
  static constexpr LowBitForm kForm8bit = {UpdateRule::kRMSprop, 8, /*decouples_decay=*/false};
  static constexpr const char* kOption = "alpha";

  static void check(const char* name, const RMSpropOptions& o) {
    TORCH_CHECK_VALUE(o.alpha() != 0, name, ": alpha 0 keeps no state; choose a number above 0");
    TORCH_CHECK_VALUE(o.momentum() == 0 && !o.centered(), name, ": momentum ", o.momentum(), " and centered ",
                      o.centered(), " would need further states, which have no 8-bit form; leave them out");
  }
  static LowBitHyperparameters read(const RMSpropOptions& o) {
    return {o.lr(), o.alpha(), 0, o.eps(), o.weight_decay(), false};
  }
  static void write(RMSpropOptions& o, const LowBitHyperparameters& h) {
    o.lr(h.lr).alpha(h.beta1).eps(h.eps).weight_decay(h.weight_decay);
  }
};

template <>
struct Family<AdagradOptions> {
  static constexpr LowBitForm kForm8bit = {UpdateRule::kAdagrad, 8, /*decouples_decay=*/false};
  static constexpr const char* kOption = "lr_decay";

  static void check(const char* name, const AdagradOptions& o) {
    TORCH_CHECK_VALUE(o.lr_decay() == 0 && o.initial_accumulator_value() == 0, name, ": lr_decay ",
                      o.lr_decay(), " and initial_accumulator_value ", o.initial_accumulator_value(),
                      " have no 8-bit form; leave them out, or use FusedAdagrad");
  }
  static LowBitHyperparameters read(const AdagradOptions& o) {
    return {o.lr(), 0, 0, o.eps(), o.weight_decay(), o.maximize()};
  }
  static void write(AdagradOptions& o, const LowBitHyperparameters& h) {
    o.lr(h.lr).eps(h.eps).weight_decay(h.weight_decay);
  }
};

template <typename Options>
void check_all(const char* name, const Options& options) {
  validate(name, options);
  Family<Options>::check(name, options);
}

template <typename Options>
std::unique_ptr<Options> checked(const char* name, const Options& options) {
  check_all(name, options);
  return std::make_unique<Options>(options);
}

}  // namespace

// NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): the other constructor initializes name_
template <typename Options>
LowBitOptimizerWith<Options>::LowBitOptimizerWith(
    const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& defaults,
    const LowBitOptions& options)
    : LowBitOptimizerWith(name, Family<Options>::kForm8bit, groups, defaults, options) {}

template <typename Options>
LowBitOptimizerWith<Options>::LowBitOptimizerWith(
    const char* name, const Form& form, const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const Options& defaults, const LowBitOptions& options)
    : LowBitOptimizer(name, form, groups, checked(name, defaults), options), name_(name) {
  validate_groups<Options>(name, param_groups());
  for (const auto& group : param_groups()) checked_options(group);
}

template <typename Options>
const torch::optim::OptimizerOptions& LowBitOptimizerWith<Options>::checked_options(
    const torch::optim::OptimizerParamGroup& group) const {
  const Options& options = options_of<Options>(name_, group);
  check_all(name_, options);
  return options;
}

template <typename Options>
void LowBitOptimizerWith<Options>::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LowBitParamState, Options>(archive, *this);
  save_draws(archive);
}

template <typename Options>
void LowBitOptimizerWith<Options>::load(torch::serialize::InputArchive& archive) {
  load_optimizer<LowBitParamState, Options>(name_, Family<Options>::kOption, archive, *this);
  load_draws(archive);
}

template <typename Options>
LowBitHyperparameters LowBitOptimizerWith<Options>::hyperparameters(
    const torch::optim::OptimizerOptions& options) const {
  return Family<Options>::read(static_cast<const Options&>(options));
}

template <typename Options>
void LowBitOptimizerWith<Options>::set_hyperparameters(torch::optim::OptimizerOptions& options,
                                                       const Hyperparameters& settings) const {
  Family<Options>::write(static_cast<Options&>(options), settings);
}

template class LowBitOptimizerWith<AdamOptions>;
template class LowBitOptimizerWith<LionOptions>;
template class LowBitOptimizerWith<SGDOptions>;
template class LowBitOptimizerWith<RMSpropOptions>;
template class LowBitOptimizerWith<AdagradOptions>;

}  // namespace mantissa
