#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/core/state_dict.h"
#include "mantissa/core/weak_map.h"
#include "mantissa/optim/fused_optimizer.h"
#include "mantissa/optim/low_bit_form.h"

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Options of a whole 8-bit or 4-bit optimizer, for all its groups.
struct LowBitOptions {
  /// The states of a parameter with fewer elements are float32: they are small, and often those of biases and
  /// norms, whose gradients differ from element to element. It has bitsandbytes's name in every optimizer.
  int64_t min_8bit_size = 4096;
  /// As in FusedOptions; the update is always computed in float32.
  bool stochastic_rounding = false;
  std::optional<uint64_t> seed = std::nullopt;
};

/// What is different for some parameters of such an optimizer. Unset: as for the others.
struct LowBitOverride {
  std::optional<int64_t> optim_bits = std::nullopt;  ///< of the states: 8 or 4, or 32
  std::optional<int64_t> min_8bit_size = std::nullopt;
  /// A learning rate that is set here does not follow a schedule.
  std::optional<double> lr = std::nullopt;
  /// SGD8bit's momentum and RMSprop8bit's alpha are their beta1.
  std::optional<double> beta1 = std::nullopt, beta2 = std::nullopt;
  std::optional<double> eps = std::nullopt, weight_decay = std::nullopt;
};

/// The state of an 8-bit or 4-bit optimizer for one parameter, under the names of bitsandbytes.
///
/// Shapes: step is 0-dim float32. In 8 bits, state1 and state2 have the parameter's shape and are uint8, and
///         absmax1 and absmax2 are float32, [blocks]: see BlockwiseCodes (blockwise.h). In 4 bits, state1 and
///         state2 are uint8, [elements / 2], and a block has 128 elements: see kernels::BlockwiseUpdate. In 32
///         bits, the states are float32, and there is no absmax. Optimizers with one state have no state2. All
///         are contiguous, whatever the parameter's layout.
struct LowBitParamState : public torch::optim::OptimizerCloneableParamState<LowBitParamState> {
  TORCH_ARG(at::Tensor, step);
  TORCH_ARG(at::Tensor, state1);
  TORCH_ARG(at::Tensor, absmax1);
  TORCH_ARG(at::Tensor, state2);
  TORCH_ARG(at::Tensor, absmax2);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// The base of the optimizers whose states have few bits: a code of 8 or 4 bits for each element, and a scale for
/// each 256 or 128. A step decodes a block, updates the parameter in float32 and encodes the block again, in one
/// pass. FusedOptimizer documents what all fused optimizers share: the scaler's path, skipped steps, groups.
///
/// Numerics: as bitsandbytes computes on CUDA, and in 4 bits torchao, with these exceptions. Products and sums
///           are not fused. A 16-bit parameter is rounded once. An element whose gradient is inf or nan keeps
///           its value, and its states become 0, with every optimizer; in 4 bits, the second one becomes 1/16
///           of its block's largest. A positive second moment never becomes 0, where bitsandbytes lets it: a
///           following gradient of 0 then divides the first moment by eps. The results do not depend on the CPU
///           and the number of threads.
/// Memory:   for each element 1 byte or 1/2 for each state, and 1/64 or 1/32 for the scales. A step takes none
///           on the CPU, except copies of parameters that are not contiguous.
/// Errors:   c10::TypeError for parameters other than float32, bfloat16 and float16.
/// Source:   Dettmers et al. 2022, arXiv:2110.02861; bitsandbytes.
/// Example:  optimizer_8bit_test.cpp, EightBit.Q45_AnOverrideBelongsToItsOptimizer
class LowBitOptimizer : public FusedOptimizer {
 public:
  /// Gives one parameter other settings. Settings that it was given before stay.
  /// Errors: c10::ValueError for a parameter that this optimizer does not step, for a value out of range, for
  ///         a setting that the optimizer does not have, and for other bits once the states exist.
  void override_config(const at::Tensor& parameter, const LowBitOverride& settings);
  /// The same for all parameters of a module and of the modules in it. Parameters that do not train may be
  /// missing in the optimizer.
  /// Errors: those above; c10::ValueError if the optimizer steps none of them. No parameter has changed then.
  void override_config(const torch::nn::Module& module, const LowBitOverride& settings);
  /// The same for the parameter that module.named_parameters() calls `name`.
  /// Errors: c10::ValueError for another name; it suggests the nearest one.
  void override_config(const torch::nn::Module& module, const std::string& name,
                       const LowBitOverride& settings);

  /// Moves the override of `before` to `now`.
  void replaced_parameter(const at::Tensor& before, const at::Tensor& now) override;
  bool updates_in_float32() const final { return true; }

  void save(torch::serialize::OutputArchive& archive) const override = 0;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override;

  /// The bits of the states of `parameter`: those of the optimizer, or 32. States of 4 bits need a multiple of
  /// 128 elements.
  int64_t optim_bits(const at::Tensor& parameter) const;

  /// Whether bitsandbytes has an optimizer with these states.
  virtual bool is_in_bitsandbytes() const { return form_.bits == 8; }

 protected:
  using Form = LowBitForm;
  using Hyperparameters = LowBitHyperparameters;

  LowBitOptimizer(const char* name, const Form& form,
                  const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  std::unique_ptr<torch::optim::OptimizerOptions> defaults, const LowBitOptions& options);

  void add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) override;
  void call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const final;
  void update(const std::vector<Slot>& slots, const Batch& batch,
              const torch::optim::OptimizerOptions& options) override;
  const Dtypes& dtypes() const final;

  /// Appends one state to `slot`: its values, and its scales if it has codes. Makes what is undefined.
  void add_values(Slot& slot, at::Tensor& values, at::Tensor& absmax) const;
  /// Appends the formats of one state.
  void add_formats(std::vector<StateFormat>& formats, const at::Tensor& parameter, std::string values,
                   std::string absmax) const;
  /// Returns the settings of a group.
  virtual Hyperparameters hyperparameters(const torch::optim::OptimizerOptions& options) const = 0;
  /// Writes the settings, except maximize, into a group's options. It is only called if is_in_bitsandbytes().
  virtual void set_hyperparameters(torch::optim::OptimizerOptions& options,
                                   const Hyperparameters& settings) const;
  /// Returns the settings of a parameter: those of its group with its override.
  Hyperparameters hyperparameters_of(const at::Tensor& parameter,
                                     const torch::optim::OptimizerOptions& options) const;

 private:
  friend StateDict bitsandbytes_state(const LowBitOptimizer& optimizer, bool is_wrapped);
  friend void load_bitsandbytes_state(LowBitOptimizer& optimizer, const StateReader& state);

  /// Throws if override_config() cannot give the parameter these settings.
  void check_override(const at::Tensor& parameter, const LowBitOverride& settings) const;
  void check_override(const LowBitOverride& settings) const;
  bool steps(const at::Tensor& parameter) const;
  void update_on_cpu(const std::vector<Slot>& slots, const Batch& batch,
                     const torch::optim::OptimizerOptions& options) const;
  void update_elsewhere(const std::vector<Slot>& slots, const Batch& batch,
                        const torch::optim::OptimizerOptions& options);

  const char* name_;
  Form form_;
  int64_t min_8bit_size_;
  WeakMap<at::Tensor, LowBitOverride> overrides_;
};

}  // namespace mantissa
