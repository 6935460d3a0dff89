#include "mantissa/optim/bitsandbytes_state.h"

#include <cmath>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/optim/blockwise_internal.h"
#include "mantissa/optim/low_bit_optimizer.h"
#include "mantissa/optim/optimizer_state.h"

namespace mantissa {
namespace {

using kernels::DynamicMap;

constexpr const char* kWrapper = "__bnb_optimizer_quant_state__";

StateDict group_of(const LowBitHyperparameters& h, const StateValue& params, bool has_two_states) {
  StateDict group = {{"lr", h.lr},
                     {"betas", StateList{h.beta1, h.beta2}},
                     {"eps", h.eps},
                     {"weight_decay", h.weight_decay},
                     {"params", params}};
  if (has_two_states) {  // options of AdEMAMix, which all optimizers with two states have there
    group.emplace("alpha", 0.0);
    group.emplace("t_alpha", StateValue());
    group.emplace("t_beta3", StateValue());
  }
  return group;
}

StateDict state_of(const StateReader& ours, bool is_wrapped) {
  StateDict tensors;
  for (const char* number : {"1", "2"}) {
    const auto values = ours.find(std::string("state") + number);
    if (!values) continue;
    tensors.emplace(std::string("state") + number, values->to_tensor());
    const auto absmax = ours.find(std::string("absmax") + number);
    if (!absmax) continue;
    tensors.emplace(std::string("absmax") + number, absmax->to_tensor());
    tensors.emplace(std::string("qmap") + number,
                    dynamic_map(*number == '1' ? DynamicMap::kSigned : DynamicMap::kUnsigned,
                                values->to_tensor().device()));
  }
  StateDict state;
  if (is_wrapped) {
    state.emplace(kWrapper, std::move(tensors));
  } else {
    state = std::move(tensors);
  }
  state.insert_or_assign("step", std::llround(ours.at("step").to_tensor().item<double>()));
  return state;
}

void check_is_in_bitsandbytes(const char* function, const LowBitOptimizer& optimizer) {
  TORCH_CHECK_VALUE(optimizer.is_in_bitsandbytes(), function,
                    ": bitsandbytes has no optimizer with such states; use optimizer_state(), or an 8-bit"
                    " optimizer");
}

/// bitsandbytes generates the maps, so that the last bit may differ.
void check_map(const StateReader& saved, DynamicMap map) {
  const at::Tensor& found = saved.to_tensor();
  const at::Tensor& wanted = dynamic_map(map, at::kCPU);
  const bool is_near = found.sizes() == wanted.sizes() &&
                       (found.to(at::kCPU, at::kFloat) - wanted).abs().max().item<float>() <= 1e-6F;
  if (!is_near) saved.fail("is another map than the dynamic one, so that its codes mean other numbers here");
}

/// Copies the values of one parameter's state under our names.
void add_values(const StateReader& saved, StateDict& ours) {
  for (const auto& [name, value] : saved.to_dict()) {
    if (name == kWrapper) {
      add_values(saved.at(name), ours);
    } else if (name == "qmap1" || name == "qmap2") {
      check_map(saved.at(name), name == "qmap1" ? DynamicMap::kSigned : DynamicMap::kUnsigned);
    } else if (name == "step") {
      const auto* const tensor = value.get_if<at::Tensor>();
      if (tensor && tensor->numel() != 1) saved.at(name).fail("is not a single number");
      const double step = tensor ? tensor->item<double>() : static_cast<double>(saved.at(name).to_count());
      ours.insert_or_assign(name, at::scalar_tensor(step, at::kFloat));
    } else {
      ours.insert_or_assign(name, value);  // load_optimizer_state() refuses what is not ours
    }
  }
}

}  // namespace

StateDict bitsandbytes_state(const LowBitOptimizer& optimizer, bool is_wrapped) {
  check_is_in_bitsandbytes("bitsandbytes_state", optimizer);
  const StateDict ours = optimizer_state(optimizer);
  const StateReader states = StateReader(ours).at("state"), groups = StateReader(ours).at("param_groups");
  StateDict their_states;
  for (const auto& [number, state] : states.to_dict())
    their_states.emplace(number, state_of(states.at(number), is_wrapped));
  StateList their_groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto h = optimizer.hyperparameters(optimizer.param_groups()[i].options());
    TORCH_CHECK_VALUE(!h.maximize, "bitsandbytes_state: parameter group ", i,
                      " maximizes, which bitsandbytes cannot; negate the loss instead");
    their_groups.emplace_back(
        group_of(h, groups.at(i).to_dict().at("params"), kernels::has_second_state(optimizer.form_.rule)));
  }
  return {{"state", std::move(their_states)}, {"param_groups", std::move(their_groups)}};
}

void load_bitsandbytes_state(LowBitOptimizer& optimizer, const StateReader& state) {
  check_is_in_bitsandbytes("load_bitsandbytes_state", optimizer);
  StateDict ours = optimizer_state(optimizer);
  StateDict states;
  const StateReader saved_states = state.at("state"), saved_groups = state.at("param_groups");
  for (const auto& [number, saved] : saved_states.to_dict()) {
    StateDict values;
    add_values(saved_states.at(number), values);
    states.emplace(number, std::move(values));
  }
  ours.insert_or_assign("state", std::move(states));

  // The options that both have are set on copies first, and checked as in a step, so that an error changes nothing.
  auto& our_groups = *ours.at("param_groups").get_if<StateList>();
  if (saved_groups.size() != our_groups.size())
    saved_groups.fail(c10::str("are ", saved_groups.size(), "; the optimizer has ", our_groups.size()));
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t i = 0; i < our_groups.size(); ++i) {
    const StateReader saved = saved_groups.at(i), betas = saved.at("betas");
    auto& group =
        groups.emplace_back(std::vector<at::Tensor>(), optimizer.param_groups()[i].options().clone());
    auto h = optimizer.hyperparameters(group.options());
    h.lr = saved.at("lr").to_double(), h.eps = saved.at("eps").to_double();
    h.beta1 = betas.at(0).to_double(), h.beta2 = betas.at(1).to_double();
    h.weight_decay = saved.at("weight_decay").to_double();
    optimizer.set_hyperparameters(group.options(), h);
    try {
      optimizer.checked_options(group);
    } catch (const c10::ValueError& error) {
      saved.fail(error.what_without_backtrace());
    }
    our_groups[i].get_if<StateDict>()->insert_or_assign("params", saved.to_dict().at("params"));
  }
  load_optimizer_state(optimizer, StateReader(ours, state.path()));
  for (size_t i = 0; i < groups.size(); ++i)
    optimizer.param_groups()[i].set_options(groups[i].options().clone());
}

}  // namespace mantissa
