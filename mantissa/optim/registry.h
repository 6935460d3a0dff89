#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace mantissa {

/// The settings of make_optimizer(). Unset: the optimizer's own default. One struct serves all optimizers of
/// the table; each accepts some of its members.
struct OptimizerSettings {
  std::optional<double> lr = std::nullopt, momentum = std::nullopt, beta1 = std::nullopt,
                        beta2 = std::nullopt, alpha = std::nullopt, eps = std::nullopt,
                        weight_decay = std::nullopt, lr_decay = std::nullopt;
  std::optional<int64_t> min_8bit_size = std::nullopt;
  std::optional<bool> stochastic_rounding = std::nullopt;
  /// Selects the draws of stochastic rounding; unset: drawn from libtorch's generator.
  std::optional<uint64_t> seed = std::nullopt;

  bool operator==(const OptimizerSettings&) const = default;
};

/// Calls visit(name, pointer to member) for every setting. This is the only list of them.
template <typename Visit>
void for_each_setting(const Visit& visit) {
  visit("lr", &OptimizerSettings::lr);
  visit("momentum", &OptimizerSettings::momentum);
  visit("beta1", &OptimizerSettings::beta1);
  visit("beta2", &OptimizerSettings::beta2);
  visit("alpha", &OptimizerSettings::alpha);
  visit("eps", &OptimizerSettings::eps);
  visit("weight_decay", &OptimizerSettings::weight_decay);
  visit("lr_decay", &OptimizerSettings::lr_decay);
  visit("min_8bit_size", &OptimizerSettings::min_8bit_size);
  visit("stochastic_rounding", &OptimizerSettings::stochastic_rounding);
  visit("seed", &OptimizerSettings::seed);
}

/// A row of the table of optimizers: everything that the command line, the tests and make_optimizer() know
/// about one.
struct OptimizerEntry {
  std::string name;     ///< for example "fused-adamw"
  std::string summary;  ///< one line for --help
  /// The defaults of the settings that the optimizer accepts. The others are unset and not accepted; the
  /// exception is `seed`, which is accepted wherever `stochastic_rounding` is.
  OptimizerSettings defaults;
  /// `settings` must be complete. `not_matrices` are parameters that are no weights of a layer's product, whatever
  /// their dimensions; only Muon reads them.
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<at::Tensor> parameters,
                                                   const OptimizerSettings& settings,
                                                   const std::vector<at::Tensor>& not_matrices);
  /// It keeps squared gradients in the weights' dtype, unless it rounds stochastically. In fp16 these squares
  /// and `eps` underflow.
  bool squares_gradients = false;
  /// The optimizer to choose for a momentum of 0, which this one refuses; empty if it accepts 0 or has none.
  std::string for_momentum_0 = {};

  bool takes(std::string_view setting) const;
};

/// Returns every optimizer, in the order in which users should read them.
const std::vector<OptimizerEntry>& optimizers();

/// Errors: c10::ValueError for an unknown name, which suggests the nearest one and lists all.
const OptimizerEntry& find_optimizer(const std::string& name);

/// Returns the members of `settings` that the optimizer accepts.
OptimizerSettings settings_taken(const OptimizerEntry& optimizer, const OptimizerSettings& settings);

/// Makes the optimizer called `name` for `parameters`, all in one group.
/// Errors: c10::ValueError for an unknown name, for a setting that the optimizer does not accept (the message
///         lists the accepted ones), and for values that its constructor refuses.
/// Example: registry_test.cpp, OptimizerRegistry.EveryOneTakesAStep
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<at::Tensor> parameters,
                                                        const OptimizerSettings& settings = {});
/// The same for all parameters of a module. muon and muon8bit step the matrices of the layers; AdamW, with the same
/// learning rate and weight decay, steps the parameters of other dimensions and the weights of Embedding and
/// EmbeddingBag, which only the module tells from other matrices. A weight that an embedding shares with another
/// layer is one of these.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const torch::nn::Module& module,
                                                        const OptimizerSettings& settings = {});

}  // namespace mantissa
