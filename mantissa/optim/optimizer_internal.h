#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "mantissa/optim/state_format.h"

namespace torch::optim {
struct RMSpropOptions;
}

namespace mantissa {

struct AdagradOptions;
struct AdamOptions;
struct AdamParamState;
struct LionOptions;
struct MuonOptions;
struct SGDOptions;

/// Throw c10::ValueError naming `optimizer` and the option that is out of range. NaN is out of range.
void validate(const char* optimizer, const AdagradOptions& options);
void validate(const char* optimizer, const AdamOptions& options);
void validate(const char* optimizer, const LionOptions& options);
void validate(const char* optimizer, const MuonOptions& options);
void validate(const char* optimizer, const torch::optim::RMSpropOptions& options);
void validate(const char* optimizer, const SGDOptions& options);

/// For the constructors of our optimizers, which pass the defaults to libtorch's constructor before their
/// body runs.
template <typename Options>
std::unique_ptr<Options> validated(const char* optimizer, const Options& options) {
  validate(optimizer, options);
  return std::make_unique<Options>(options);
}

template <typename Options>
const Options& options_of(const char* optimizer, const torch::optim::OptimizerParamGroup& group) {
  const auto* options = dynamic_cast<const Options*>(&group.options());
  TORCH_CHECK_TYPE(options, optimizer,
                   ": a parameter group has another optimizer's options; give it those that ", optimizer,
                   "'s constructor takes");
  return *options;
}

/// Errors: c10::TypeError and c10::ValueError for a group's options; c10::ValueError for an empty list of
///         parameters.
template <typename Options>
void validate_groups(const char* optimizer, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  size_t parameters = 0;
  for (const auto& group : groups) {
    validate(optimizer, options_of<Options>(optimizer, group));
    parameters += group.params().size();
  }
  TORCH_CHECK_VALUE(parameters > 0, optimizer,
                    ": got no parameters; pass model->parameters() of a model that has some");
}

/// Removes repeated parameters from `groups`; the first of them stays. libtorch's Module::parameters() lists
/// a tied weight once for each module that holds it, and the optimizer would step it that often; Python's
/// lists it once. Called in each step too, because libtorch's add_param_group() is not virtual.
///
/// Errors: c10::ValueError if two groups share a parameter, because it is unclear which group's options
///         apply. `optimizer` is its name in the message. Nothing has changed then.
void keep_each_parameter_once(const char* optimizer, std::vector<torch::optim::OptimizerParamGroup>& groups);

/// The same for the constructors of our optimizers, which pass the groups to libtorch's constructor.
inline std::vector<torch::optim::OptimizerParamGroup> unique_parameters(
    const char* optimizer, std::vector<torch::optim::OptimizerParamGroup> groups) {
  keep_each_parameter_once(optimizer, groups);
  return groups;
}

/// Gives the last of `groups` the options that each of `given` brought. From version 2.13 on, libtorch's
/// add_param_group() replaces them with the defaults unless they belong to one of libtorch's own optimizers.
void keep_options(const std::vector<torch::optim::OptimizerParamGroup>& given,
                  std::vector<torch::optim::OptimizerParamGroup>& groups);

/// Implements add_param_group() of our optimizers. `add` is libtorch's, which adds the group to `groups`.
///
/// Errors: c10::TypeError and c10::ValueError for the group's options; c10::ValueError for a parameter that
///         is undefined or in another group. Nothing has changed then.
template <typename Options, typename Add>
void add_validated_group(const char* optimizer, const torch::optim::OptimizerParamGroup& group,
                         std::vector<torch::optim::OptimizerParamGroup>& groups, const Add& add) {
  if (group.has_options()) validate(optimizer, options_of<Options>(optimizer, group));
  for (const at::Tensor& parameter : group.params())
    TORCH_CHECK_VALUE(parameter.defined(), optimizer,
                      ": a parameter of the group is an undefined tensor; leave it out");
  std::vector<torch::optim::OptimizerParamGroup> all = groups;
  all.push_back(group);
  keep_each_parameter_once(optimizer, all);
  add(group);
  keep_options({group}, groups);
}

/// Calls `closure` with gradients enabled and returns its result; returns an undefined tensor without a
/// closure.
at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure);

using ParamStateSlot = std::unique_ptr<torch::optim::OptimizerParamState>;

template <typename State>
State& state_in(ParamStateSlot& slot) {
  if (!slot) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// Replaces an undefined state tensor by zeros. A state tensor that comes from a file, or was made before the
/// parameter was converted, is brought to the parameter's device, layout in memory and `dtype`.
void fit_state(at::Tensor& state, const at::Tensor& parameter, at::ScalarType dtype);

/// Brings `step`, the counter of a state, to `device` as float32; an undefined counter becomes 0. That of a file may have
/// another dtype: Python's optimizers count in float64 where it is the default dtype.
at::Tensor& step_on(at::Device device, at::Tensor& step);
/// Reads "step", also as the number that libtorch's own optimizers write.
void read_step(torch::serialize::InputArchive& archive, at::Tensor& step);

/// Returns the state of Adam and its fused version; makes it if it is missing. The moments have `dtype`.
AdamParamState& adam_state(ParamStateSlot& slot, const at::Tensor& parameter, bool amsgrad,
                           at::ScalarType dtype);

/// The values in the states of Adam and SGD, and of their fused versions.
std::vector<StateFormat> adam_state_formats(const at::Tensor& parameter);
std::vector<StateFormat> sgd_state_formats(const at::Tensor& parameter);

template <typename T>
void read_if_present(torch::serialize::InputArchive& archive, const std::string& key, T& value) {
  c10::IValue stored;
  if (archive.try_read(key, stored)) value = stored.to<T>();
}

/// Checks that the file in `archive` fits `optimizer`, which is called `name`. `option` is an option that
/// only files for this optimizer have; `check_options` is called with each group's options.
///
/// Errors: c10::ValueError for a file of another optimizer or of other parameters.
void check_saved(const char* name, const std::string& option, torch::serialize::InputArchive& archive,
                 const torch::optim::Optimizer& optimizer,
                 const std::function<void(torch::serialize::InputArchive&)>& check_options);

/// Implements load() of our optimizers: the whole file is checked before anything changes. libtorch loads the
/// names that it knows and leaves the rest unchanged.
///
/// Errors: those of check_saved(), validate_groups() and keep_each_parameter_once(); c10::ValueError for
///         options out of range. Nothing has changed then.
template <typename State, typename Options>
void load_optimizer(const char* name, const std::string& option, torch::serialize::InputArchive& archive,
                    torch::optim::Optimizer& optimizer) {
  keep_each_parameter_once(name, optimizer.param_groups());
  validate_groups<Options>(name, optimizer.param_groups());
  check_saved(name, option, archive, optimizer, [&](torch::serialize::InputArchive& saved) {
    Options options;
    options.serialize(saved);
    validate(name, options);
  });
  torch::optim::serialize<State, Options>(archive, optimizer);
}

inline void write_if_defined(torch::serialize::OutputArchive& archive, const std::string& key,
                             const at::Tensor& tensor) {
  if (tensor.defined()) archive.write(key, c10::IValue(tensor));
}

}  // namespace mantissa
