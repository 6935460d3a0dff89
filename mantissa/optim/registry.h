#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

/// What make_optimizer() may be told. Unset: the optimizer's own default. One struct serves all optimizers of
/// the table; each takes some of its members.
struct OptimizerSettings {
  std::optional<double> lr = std::nullopt, momentum = std::nullopt, beta1 = std::nullopt,
                        beta2 = std::nullopt, eps = std::nullopt, weight_decay = std::nullopt;
  std::optional<bool> stochastic_rounding = std::nullopt;
  /// Names the draws of stochastic rounding; unset: drawn from libtorch's generator.
  std::optional<uint64_t> seed = std::nullopt;

  bool operator==(const OptimizerSettings&) const = default;
};

/// Calls visit(name, pointer to member) for every setting. The only list of them.
template <typename Visit>
void for_each_setting(const Visit& visit) {
  visit("lr", &OptimizerSettings::lr);
  visit("momentum", &OptimizerSettings::momentum);
  visit("beta1", &OptimizerSettings::beta1);
  visit("beta2", &OptimizerSettings::beta2);
  visit("eps", &OptimizerSettings::eps);
  visit("weight_decay", &OptimizerSettings::weight_decay);
  visit("stochastic_rounding", &OptimizerSettings::stochastic_rounding);
  visit("seed", &OptimizerSettings::seed);
}

/// A row of the table of optimizers: all that the command line, the tests and make_optimizer() know of one.
struct OptimizerEntry {
  std::string name;     ///< for example "fused-adamw"
  std::string summary;  ///< one line for --help
  /// The defaults of the settings that it takes. It does not take the others, which are unset, but that a
  /// `seed` comes with `stochastic_rounding`.
  OptimizerSettings defaults;
  /// `settings` are complete.
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<at::Tensor> parameters,
                                                   const OptimizerSettings& settings);
  /// It unscales the gradients and drops overflowed steps inside step(): StepSupportsAmpScaling.
  bool unscales_in_step = false;
  /// It keeps squared gradients in the weights' dtype, unless it rounds stochastically. They and `eps`
  /// underflow in fp16.
  bool squares_gradients = false;

  bool takes(std::string_view setting) const;
};

/// Every optimizer, in the order in which users should read them.
const std::vector<OptimizerEntry>& optimizers();

/// Errors: c10::ValueError for an unknown name, with the nearest one and the list.
const OptimizerEntry& find_optimizer(const std::string& name);

/// The settings of `settings` that the optimizer takes, without the others.
OptimizerSettings settings_taken(const OptimizerEntry& optimizer, const OptimizerSettings& settings);

/// The optimizer called `name` for `parameters`, all in one group.
/// Errors: c10::ValueError for an unknown name, for a setting that it does not take, with those that it does,
///         and for what its constructor refuses.
/// Example: registry_test.cpp, OptimizerRegistry.EveryOneTakesAStep
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<at::Tensor> parameters,
                                                        const OptimizerSettings& settings = {});

}  // namespace mantissa
