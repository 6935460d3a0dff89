#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {

namespace {

struct OptionOf {
  std::string_view option, optimizer;
};

/// Options that distinguish libtorch's optimizers and ours in a file.
constexpr std::array<OptionOf, 5> kOptions = {{{"betas", "Adam or AdamW"},
                                               {"nesterov", "SGD"},
                                               {"lr_decay", "Adagrad"},
                                               {"alpha", "RMSprop"},
                                               {"max_iter", "LBFGS"}}};

bool has(const std::vector<std::string>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string owner_of(const std::vector<std::string>& options) {
  for (const OptionOf& known : kOptions) {
    if (has(options, known.option)) return std::string(known.optimizer);
  }
  return "an unknown optimizer";
}

torch::serialize::InputArchive part(const char* name, torch::serialize::InputArchive& archive,
                                    const std::string& key) {
  torch::serialize::InputArchive result;
  TORCH_CHECK_VALUE(archive.try_read(key, result), name, "::load: the file has no '", key,
                    "', so it does not hold an optimizer; give a file that torch::save() wrote from one");
  return result;
}

/// Reads a number that libtorch writes as a tensor.
size_t size_in(const char* name, torch::serialize::InputArchive& archive, const std::string& key) {
  at::Tensor size;
  TORCH_CHECK_VALUE(archive.try_read(key, size), name, "::load: the file has no '", key,
                    "', so it does not hold an optimizer; give a file that torch::save() wrote from one");
  return static_cast<size_t>(size.item<int64_t>());
}

constexpr const char* kLoadMatchingNetwork = "; load it into an optimizer of the net that it was saved with";

/// Checks that the state in `archive` has the values that the optimizer keeps for `parameter`; without
/// formats, that they have the parameter's shape.
void check_values(const char* name, size_t group, size_t index, const at::Tensor& parameter,
                  torch::serialize::InputArchive& state, const HasStateFormats* optimizer) {
  const std::vector<StateFormat> formats =
      optimizer ? optimizer->state_formats(parameter) : std::vector<StateFormat>();
  const std::vector<std::string> keys = state.keys();
  const auto place = [&] { return c10::str(" for parameter ", index, " of group ", group); };
  for (const std::string& key : keys) {
    c10::IValue value;
    const StateFormat* const format = find_format(formats, key);
    const bool counts = format ? format->kind == StateFormat::Kind::kCount : key == "step";
    if (counts || !state.try_read(key, value) || !value.isTensor()) continue;
    TORCH_CHECK_VALUE(!optimizer || format, name, "::load: the file has a ", key, place(),
                      ", which is not part of ", name, "'s state; load it into the optimizer that saved it");
    const at::Tensor& tensor = value.toTensor();
    const StateFormat wanted = format ? *format : StateFormat::like(parameter, key);
    TORCH_CHECK_VALUE(tensor.sizes() == wanted.sizes || parameter.sizes() != wanted.sizes, name,
                      "::load: the file has a ", key, " of shape ", tensor.sizes(), place(),
                      ", whose shape is ", parameter.sizes(), kLoadMatchingNetwork);
    const std::string wrong = wanted.misfit(tensor);
    TORCH_CHECK_VALUE(wrong.empty(), name, "::load: the file's ", key, place(), " ", wrong,
                      kLoadMatchingNetwork);
  }
  for (const StateFormat& format : formats) {
    TORCH_CHECK_VALUE(!format.is_required || has(keys, format.name), name, "::load: the file has no ",
                      format.name, place(), kLoadMatchingNetwork);
  }
}

}  // namespace

void keep_each_parameter_once(const char* optimizer, std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::unordered_map<const c10::TensorImpl*, size_t> group_of;
  bool repeated = false;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group].params()) {
      const auto [found, first] = group_of.emplace(parameter.unsafeGetTensorImpl(), group);
      TORCH_CHECK_VALUE(found->second == group, optimizer, ": a parameter of shape ", parameter.sizes(),
                        " is in parameter groups ", found->second, " and ", group,
                        "; keep it in one of them");
      repeated = repeated || !first;
    }
  }
  if (!repeated) return;
  for (auto& group : groups) {
    std::unordered_set<const c10::TensorImpl*> seen;
    std::erase_if(group.params(), [&](const at::Tensor& parameter) {
      return !seen.insert(parameter.unsafeGetTensorImpl()).second;
    });
  }
}

void check_saved(const char* name, const std::string& option, torch::serialize::InputArchive& archive,
                 const torch::optim::Optimizer& optimizer,
                 const std::function<void(torch::serialize::InputArchive&)>& check_options) {
  const auto& groups = optimizer.param_groups();
  torch::serialize::InputArchive states = part(name, archive, "state");
  torch::serialize::InputArchive saved_groups = part(name, archive, "param_groups");
  const std::vector<std::string> with_state = states.keys();
  const size_t saved = size_in(name, saved_groups, "param_groups/size");
  for (size_t group = 0; group < saved; ++group) {
    torch::serialize::InputArchive saved_group =
        part(name, saved_groups, "param_groups/" + std::to_string(group));
    torch::serialize::InputArchive options = part(name, saved_group, "options");
    const std::vector<std::string> keys = options.keys();
    TORCH_CHECK_VALUE(has(keys, option), name, "::load: the file is of ", owner_of(keys),
                      ", whose options and state are not ", name, "'s; load it into that, or start ", name,
                      " without a file");
    TORCH_CHECK_VALUE(saved == groups.size(), name, "::load: the file has ", saved,
                      " parameter groups, and the optimizer has ", groups.size(), kLoadMatchingNetwork);
    const auto& parameters = groups[group].params();
    const size_t count = size_in(name, saved_group, "params/size");
    TORCH_CHECK_VALUE(count == parameters.size(), name, "::load: the file has ", count,
                      " parameters in group ", group, ", and the optimizer has ", parameters.size(),
                      kLoadMatchingNetwork);
    check_options(options);
    for (size_t index = 0; index < count; ++index) {
      c10::IValue key;
      TORCH_CHECK_VALUE(saved_group.try_read("params/" + std::to_string(index), key) && key.isString(), name,
                        "::load: the file does not name parameter ", index, " of group ", group,
                        ", so it does not hold an optimizer; give a file that torch::save() wrote from one");
      if (!has(with_state, key.toStringRef())) continue;
      torch::serialize::InputArchive state = part(name, states, key.toStringRef());
      check_values(name, group, index, parameters[index], state,
                   dynamic_cast<const HasStateFormats*>(&optimizer));
    }
  }
}

void keep_options(const std::vector<torch::optim::OptimizerParamGroup>& given,
                  std::vector<torch::optim::OptimizerParamGroup>& groups) {
  const size_t first = groups.size() - given.size();
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i].has_options()) groups[first + i].set_options(given[i].options().clone());
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode enable_grad(true);
  return closure();
}

void fit_state(at::Tensor& state, const at::Tensor& parameter, at::ScalarType dtype) {
  const bool fits = state.defined() && state.scalar_type() == dtype && state.device() == parameter.device() &&
                    (state.strides() == parameter.strides() || !parameter.is_non_overlapping_and_dense());
  if (fits) return;
  at::Tensor fitting = at::zeros_like(parameter, parameter.options().dtype(dtype));
  if (state.defined()) fitting.copy_(state);
  state = fitting;
}

at::Tensor& step_on(at::Device device, at::Tensor& step) {
  if (!step.defined()) step = at::scalar_tensor(0.0, at::kFloat);
  step = step.to(device, at::kFloat);
  return step;
}

void read_step(torch::serialize::InputArchive& archive, at::Tensor& step) {
  c10::IValue stored;
  if (!archive.try_read("step", stored)) return;
  step = stored.isTensor() ? stored.toTensor() : at::scalar_tensor(stored.toScalar(), at::kFloat);
}

}  // namespace mantissa
