#include "mantissa/optim/optimizer_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/suggest.h"
#include "mantissa/optim/archive_internal.h"
#include "mantissa/optim/state_format.h"

namespace mantissa {
namespace {

using torch::optim::Optimizer;

// The names in libtorch's archives.
constexpr const char* kState = "state";
constexpr const char* kGroups = "param_groups";
constexpr const char* kParams = "params";
constexpr const char* kVersion = "pytorch_version";

constexpr const char* kLoadMatchingOptimizer =
    "; load it into an optimizer of the kind and net that it was saved with";

std::string numbered(const char* name, size_t number) {
  return std::string(name) + "/" + std::to_string(number);
}

/// Reads a number that libtorch writes as a tensor.
size_t size_in(const StateReader& archive, const char* name) {
  return static_cast<size_t>(archive.at(std::string(name) + "/size").to_tensor().item<int64_t>());
}
at::Tensor size_tensor(size_t size) { return at::scalar_tensor(static_cast<int64_t>(size), at::kLong); }

/// Returns each parameter once, in the order of its number.
std::vector<at::Tensor> unique_parameters_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> unique;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) unique.push_back(parameter);
    }
  }
  return unique;
}

std::vector<std::string> keys_of(const StateDict& dict) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : dict) keys.push_back(key);
  return keys;
}

/// Drops options that are off and unknown to the optimizer: libtorch's own optimizers have no maximize.
StateDict without_unknown_disabled_options(const StateReader& saved, const StateReader& present) {
  StateDict state = saved.to_dict();
  auto* groups = state.contains(kGroups) ? state.at(kGroups).get_if<StateList>() : nullptr;
  const StateReader known = present.at(kGroups);
  for (size_t i = 0; groups && i < std::min(groups->size(), known.size()); ++i) {
    auto* group = (*groups)[i].get_if<StateDict>();
    if (!group) continue;
    std::erase_if(*group, [&](const auto& option) {
      const bool* is_on = option.second.template get_if<bool>();
      return is_on && !*is_on && !known.at(i).find(option.first);
    });
  }
  return state;
}

/// Checks that a group has the parameter numbers and options of `present`; the options' values may differ.
void check_group(const StateReader& saved, const StateReader& present) {
  const StateReader params = saved.at(kParams);
  if (!difference({{kParams, params.to_list()}}, {{kParams, present.at(kParams).to_list()}}).empty()) {
    params.fail(c10::str("the ", params.size(), " saved parameters do not match the optimizer's ",
                         present.at(kParams).size(), " parameters", kLoadMatchingOptimizer));
  }
  const auto names = keys_of(saved.to_dict()), wanted = keys_of(present.to_dict());
  if (names != wanted) {
    saved.fail("has the options " + join_names(names) + "; the optimizer's are " + join_names(wanted) +
               kLoadMatchingOptimizer);
  }
  for (const std::string& name : wanted) {
    const StateValue &value = saved.to_dict().at(name), &now = present.to_dict().at(name);
    // An option that may be unset, such as LBFGS's max_eval, is null then.
    if (value.kind() != now.kind() && !value.is_null() && !now.is_null()) {
      saved.at(name).fail("is " + std::string(value.kind()) + "; " + std::string(now.kind()) +
                          " was expected");
    }
    const auto* const number = value.get_if<double>();
    if (number && std::isnan(*number)) saved.at(name).fail("is nan; a number was expected");
  }
}

/// Checks a parameter's number of steps, which is a number or a one-element tensor.
void check_step(const StateReader& saved, const StateValue& value) {
  const auto* const tensor = value.get_if<at::Tensor>();
  if (tensor && tensor->numel() != 1) saved.fail("is not a single number");
  const auto most = static_cast<double>(kMaxCount);
  const double step = tensor ? tensor->item<double>() : saved.to_double(0, most);
  if (!(step >= 0 && step <= most))
    saved.fail(c10::str("is ", step, "; a number from 0 to ", kMaxCount, " was expected"));
}

/// Checks a moment of an optimizer without formats: it has its parameter's shape, is one number, or spans all
/// parameters, as those of LBFGS do.
void check_moment(const StateReader& saved, const StateValue& value, const at::Tensor& parameter,
                  int64_t total) {
  if (const auto* list = value.get_if<StateList>()) {
    for (size_t i = 0; i < list->size(); ++i) check_moment(saved.at(i), (*list)[i], parameter, total);
  } else if (const auto* tensor = value.get_if<at::Tensor>()) {
    const bool fits = tensor->sizes() == parameter.sizes() || tensor->dim() == 0 ||
                      tensor->sizes() == at::IntArrayRef({total});
    if (!fits)
      saved.fail(c10::str("has shape ", tensor->sizes(), "; its parameter's is ", parameter.sizes(),
                          kLoadMatchingOptimizer));
  }
}

/// Checks that one parameter's state has the values that `formats` list, each in its format.
void check_formats(const StateReader& saved, const std::vector<StateFormat>& formats) {
  const auto names = [&] {
    std::vector<std::string> all;
    for (const StateFormat& format : formats) all.push_back(format.name);
    return join_names(all);
  };
  for (const auto& [name, value] : saved.to_dict()) {
    const StateReader entry = saved.at(name);
    const StateFormat* const format = find_format(formats, name);
    if (!format)
      entry.fail("is not a value of this optimizer's state, which has " + names() + kLoadMatchingOptimizer);
    if (format->kind == StateFormat::Kind::kCount) {
      check_step(entry, value);
    } else if (!value.is_null()) {
      const std::string wrong = format->misfit(entry.to_tensor());
      if (!wrong.empty()) entry.fail(wrong + kLoadMatchingOptimizer);
    }
  }
  for (const StateFormat& format : formats) {
    const auto found = saved.find(format.name);
    if (format.is_required && (!found || found->is_null()))
      saved.fail("has no '" + format.name + "'; the values are " + names() + kLoadMatchingOptimizer);
  }
}

/// Checks one parameter's state for an optimizer without formats.
void check_values(const StateReader& saved, const at::Tensor& parameter, int64_t total) {
  for (const auto& [name, value] : saved.to_dict()) {
    if (name == "step") {
      check_step(saved.at(name), value);
    } else {
      check_moment(saved.at(name), value, parameter, total);
    }
  }
}

void check(const StateReader& saved, const StateReader& present, const std::vector<at::Tensor>& parameters,
           const HasStateFormats* optimizer) {
  const StateReader groups = saved.at(kGroups), present_groups = present.at(kGroups);
  if (groups.to_list().size() != present_groups.size()) {
    groups.fail(c10::str("are ", groups.size(), "; the optimizer has ", present_groups.size(),
                         kLoadMatchingOptimizer));
  }
  for (size_t i = 0; i < groups.size(); ++i) check_group(groups.at(i), present_groups.at(i));
  int64_t total = 0;
  std::map<std::string, at::Tensor, std::less<>> by_number;
  for (size_t i = 0; i < parameters.size(); ++i) {
    total += parameters[i].numel();
    by_number.emplace(std::to_string(i), parameters[i]);
  }
  const StateReader states = saved.at(kState);
  for (const auto& [number, state] : states.to_dict()) {
    const StateReader entry = states.at(number);
    const auto parameter = by_number.find(number);
    if (parameter == by_number.end()) {
      entry.fail(c10::str("there are only ", parameters.size(), " parameters", kLoadMatchingOptimizer));
    }
    if (optimizer) {
      check_formats(entry, optimizer->state_formats(parameter->second));
    } else {
      check_values(entry, parameter->second, total);
    }
  }
  for (const auto& [name, value] : saved.to_dict()) {
    const auto now = present.find(name);
    // A value that only one of them has belongs to stochastic rounding, which the other does without.
    if (now && now->kind() != saved.at(name).kind()) {
      saved.at(name).fail("is " + std::string(saved.at(name).kind()) + "; " + std::string(now->kind()) +
                          " was expected");
    }
  }
}

/// Returns a copy for an optimizer to keep.
StateValue moved(const StateValue& value, at::Device device) {
  if (const auto* tensor = value.get_if<at::Tensor>()) {
    return tensor->detach().to(device, tensor->scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  const auto* list = value.get_if<StateList>();
  if (!list) return value;
  StateList copy;
  for (const StateValue& item : *list) copy.push_back(moved(item, device));
  return copy;
}

/// Returns the name of a parameter in libtorch's layout. libtorch names parameters by their address; the text of
/// any number works.
std::string address(size_t number) { return std::to_string(number); }

StateDict archive_of(const StateReader& saved, const std::vector<at::Tensor>& parameters) {
  StateDict states, groups;
  for (const auto& [number, entry] : saved.at(kState).to_dict()) {
    const size_t index = std::stoul(number);
    StateDict state;
    for (const auto& [name, value] : *entry.get_if<StateDict>()) {
      state.emplace(name, moved(value, name == "step" ? at::Device(at::kCPU) : parameters[index].device()));
    }
    states.emplace(address(index), std::move(state));
  }
  std::unordered_set<size_t> seen;
  const StateReader saved_groups = saved.at(kGroups);
  groups.emplace(std::string(kGroups) + "/size", size_tensor(saved_groups.size()));
  for (size_t i = 0; i < saved_groups.size(); ++i) {
    StateDict options = saved_groups.at(i).to_dict(), group;
    options.erase(kParams);
    const StateReader params = saved_groups.at(i).at(kParams);
    group.emplace(std::string(kParams) + "/size", size_tensor(params.size()));
    for (size_t k = 0; k < params.size(); ++k) {
      const auto number = static_cast<size_t>(params.at(k).to_int());
      // libtorch would move a repeated parameter's state twice and leave it empty.
      const bool first = seen.insert(number).second;
      group.emplace(numbered(kParams, k), address(first ? number : parameters.size()));
    }
    group.emplace("options", std::move(options));
    groups.emplace(numbered(kGroups, i), std::move(group));
  }
  StateDict archive = saved.to_dict();
  archive.insert_or_assign(kState, std::move(states));
  archive.insert_or_assign(kGroups, std::move(groups));
  archive.insert_or_assign(kVersion, "1.5.0");
  return archive;
}

/// Holds an optimizer's previous state and restores it unless commit() is called.
class Rollback {
 public:
  explicit Rollback(Optimizer& optimizer)
      : optimizer_(optimizer), state_(std::exchange(optimizer.state(), {})) {
    for (auto& group : optimizer.param_groups()) options_.push_back(group.options().clone());
  }
  ~Rollback() {
    if (done_) return;
    optimizer_.state() = std::move(state_);
    for (size_t i = 0; i < options_.size(); ++i) {
      optimizer_.param_groups()[i].set_options(std::move(options_[i]));
    }
  }
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;
  void commit() { done_ = true; }

 private:
  Optimizer& optimizer_;
  std::remove_reference_t<decltype(std::declval<Optimizer&>().state())> state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  bool done_ = false;
};

}  // namespace

StateDict optimizer_state(const Optimizer& optimizer) {
  const StateDict written = written_by([&](auto& archive) { optimizer.save(archive); });
  TORCH_CHECK_NOT_IMPLEMENTED(
      written.contains(kState) && written.contains(kGroups),
      "optimizer_state: this optimizer's save() writes no state; give it save() and load(), as"
      " torch::optim::serialize() makes them");
  const StateReader archive(written);
  std::unordered_map<std::string, int64_t> numbers;
  StateList groups;
  const StateReader saved_groups = archive.at(kGroups);
  for (size_t i = 0; i < size_in(saved_groups, kGroups); ++i) {
    const StateReader saved = saved_groups.at(numbered(kGroups, i));
    StateDict group = saved.at("options").to_dict();
    StateList params;
    for (size_t k = 0; k < size_in(saved, kParams); ++k) {
      const auto next = static_cast<int64_t>(numbers.size());
      params.emplace_back(numbers.emplace(saved.at(numbered(kParams, k)).to_string(), next).first->second);
    }
    group.insert_or_assign(kParams, std::move(params));
    groups.emplace_back(std::move(group));
  }
  StateDict states;
  for (const auto& [key, value] : archive.at(kState).to_dict()) {
    const auto number = numbers.find(key);  // not found: the parameter was removed from its group
    if (number != numbers.end()) states.emplace(std::to_string(number->second), value);
  }
  StateDict state = written;
  state.erase(kVersion);
  state.insert_or_assign(kState, std::move(states));
  state.insert_or_assign(kGroups, std::move(groups));
  return state;
}

void load_optimizer_state(Optimizer& optimizer, const StateReader& state) {
  const std::vector<at::Tensor> parameters = unique_parameters_of(optimizer);
  const StateDict present = optimizer_state(optimizer);
  const StateDict fitting = without_unknown_disabled_options(state, StateReader(present));
  const StateReader saved(fitting, state.path());
  check(saved, StateReader(present), parameters, dynamic_cast<const HasStateFormats*>(&optimizer));
  const StateDict archive = archive_of(saved, parameters);

  Rollback before(optimizer);
  read_from(archive, [&](auto& input) { optimizer.load(input); });
  // libtorch's own optimizers load the names that they know and ignore the rest.
  const StateDict loaded = optimizer_state(optimizer);
  for (const char* part : {kState, kGroups}) {
    const std::string found = difference({{part, loaded.at(part)}}, {{part, fitting.at(part)}});
    if (!found.empty())
      state.fail("the optimizer does not load all of it (loaded and saved: " + found + ")" +
                 kLoadMatchingOptimizer);
  }
  before.commit();
}

StateDict own_parameters(const Optimizer& optimizer,
                         const std::function<bool(const at::Tensor&)>& is_kept_elsewhere) {
  StateDict own;
  const std::vector<at::Tensor> parameters = unique_parameters_of(optimizer);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (!is_kept_elsewhere(parameters[i])) own.emplace(std::to_string(i), parameters[i].detach());
  return own;
}

void load_own_parameters(Optimizer& optimizer,
                         const std::function<bool(const at::Tensor&)>& is_kept_elsewhere,
                         const StateReader& parameters) {
  const StateDict targets = own_parameters(optimizer, is_kept_elsewhere);
  const auto names = keys_of(parameters.to_dict()), wanted = keys_of(targets);
  if (names != wanted) {
    parameters.fail(c10::str("there are ", names.size(), " parameters of the optimizer's own, and it has ",
                             wanted.size(), kLoadMatchingOptimizer));
  }
  for (const std::string& name : wanted) {
    const at::Tensor &saved = parameters.at(name).to_tensor(), &now = *targets.at(name).get_if<at::Tensor>();
    if (saved.sizes() != now.sizes() || saved.scalar_type() != now.scalar_type()) {
      parameters.at(name).fail(c10::str("is ", saved.scalar_type(), saved.sizes(), "; ", now.scalar_type(),
                                        now.sizes(), " was expected", kLoadMatchingOptimizer));
    }
  }
  const at::NoGradGuard no_grad;
  for (const std::string& name : wanted) {
    at::Tensor(*targets.at(name).get_if<at::Tensor>()).copy_(parameters.at(name).to_tensor());
  }
}

}  // namespace mantissa
