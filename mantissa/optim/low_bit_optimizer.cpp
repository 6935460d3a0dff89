#include "mantissa/optim/low_bit_optimizer.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/core/suggest.h"
#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/aten/update_factors.h"
#include "mantissa/optim/blockwise_internal.h"
#include "mantissa/optim/fused_optimizer_internal.h"
#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {

using kernels::BlockwiseUpdate;
using kernels::kState4Block;
using kernels::kStateBlock;
using kernels::UpdateRule;

namespace {

/// The shapes and the dtype of one state of a parameter.
struct StateShape {
  std::vector<int64_t> values, absmax;
  at::ScalarType dtype;

  StateShape(const at::Tensor& parameter, int64_t bits)
      : values(parameter.sizes().vec()), dtype(bits == 32 ? at::kFloat : at::kByte) {
    const int64_t count = parameter.numel();
    if (bits == 4) values = {count / 2};
    absmax = {bits == 4 ? count / kState4Block : (count + kStateBlock - 1) / kStateBlock};
  }
};

/// Throws if a state is not that of a parameter of this size, because its kernel would write past the end.
void check_fits(const char* optimizer, const at::Tensor& state, const at::Tensor& parameter,
                at::IntArrayRef sizes, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(!state.defined() || (state.sizes() == sizes && state.scalar_type() == dtype), optimizer,
                    ": a parameter has the shape ", parameter.sizes(), " and a state of ", state.sizes(),
                    " in ", state.scalar_type(),
                    ", which does not fit; it was resized after its first step, so make a new "
                    "optimizer for it");
}

/// Replaces an undefined state by zeros, and brings one that was loaded to the parameter's device.
at::Tensor& fit(at::Tensor& state, const at::Tensor& parameter, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (!state.defined()) state = at::zeros(sizes, parameter.options().dtype(dtype).requires_grad(false));
  state = state.to(parameter.device()).contiguous();
  return state;
}

kernels::UpdateFactors factors_of(const LowBitForm& form, const LowBitHyperparameters& h, double step) {
  return kernels::update_factors(form.rule, form.decouples_decay,
                                 {h.lr, h.beta1, h.beta2, h.eps, h.weight_decay}, step);
}

/// The tensors of a slot, whose states are state1, absmax1, state2, absmax2 as far as there are any.
struct States {
  at::Tensor state1, absmax1, state2, absmax2;

  explicit States(const std::vector<at::Tensor>& all) {
    const bool has_codes = all[0].scalar_type() == at::kByte;
    size_t next = 0;
    state1 = all[next++];
    if (has_codes) absmax1 = all[next++];
    if (next < all.size()) state2 = all[next++];
    if (next < all.size()) absmax2 = all[next++];
  }
};

}  // namespace

void LowBitParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_if_defined(archive, "step", step_);
  write_if_defined(archive, "state1", state1_);
  write_if_defined(archive, "absmax1", absmax1_);
  write_if_defined(archive, "state2", state2_);
  write_if_defined(archive, "absmax2", absmax2_);
}

void LowBitParamState::serialize(torch::serialize::InputArchive& archive) {
  read_step(archive, step_);
  read_if_present(archive, "state1", state1_);
  read_if_present(archive, "absmax1", absmax1_);
  read_if_present(archive, "state2", state2_);
  read_if_present(archive, "absmax2", absmax2_);
}

LowBitOptimizer::LowBitOptimizer(const char* name, const Form& form,
                                 const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                 std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                 const LowBitOptions& options)
    : FusedOptimizer(name, groups, std::move(defaults),
                     {.stochastic_rounding = options.stochastic_rounding, .seed = options.seed}),
      name_(name),
      form_(form),
      min_8bit_size_(options.min_8bit_size) {
  TORCH_CHECK_VALUE(min_8bit_size_ >= 0, name_, ": min_8bit_size ", min_8bit_size_,
                    " is invalid; it must be 0 or more");
}

const FusedOptimizer::Dtypes& LowBitOptimizer::dtypes() const {
  static const Dtypes dtypes = {{at::kFloat, at::kHalf, at::kBFloat16}, "float32, float16 and bfloat16 here"};
  return dtypes;
}

bool LowBitOptimizer::steps(const at::Tensor& parameter) const {
  return std::any_of(param_groups().begin(), param_groups().end(), [&](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [&](const at::Tensor& own) { return own.is_same(parameter); });
  });
}

void LowBitOptimizer::check_override(const LowBitOverride& settings) const {
  const UpdateRule rule = form_.rule;
  const bool has_beta2 = kernels::has_second_state(rule) || rule == UpdateRule::kLion;
  const bool has_eps = rule != UpdateRule::kLion && rule != UpdateRule::kSGD;
  const int64_t bits = settings.optim_bits.value_or(32);
  TORCH_CHECK_VALUE(bits == form_.bits || bits == 32, name_, ": optim_bits ", bits, " is invalid; choose ",
                    form_.bits == 32 ? "" : c10::str(form_.bits, " or "), "32");
  const auto check = [&](const char* setting, const std::optional<double>& value, bool is_taken,
                         bool is_rate) {
    if (!value) return;
    TORCH_CHECK_VALUE(is_taken, name_, ": an override of ", setting,
                      " has no effect, because this optimizer has none; leave it out");
    TORCH_CHECK_VALUE(*value >= 0 && (!is_rate || *value < 1), name_, ": an override with ", setting, " ",
                      *value, " is invalid; it must be ", is_rate ? "in [0, 1)" : "0 or more");
  };
  check("lr", settings.lr, true, false);
  check("beta1", settings.beta1, rule != UpdateRule::kAdagrad, true);
  check("beta2", settings.beta2, has_beta2, true);
  check("eps", settings.eps, has_eps, false);
  check("weight_decay", settings.weight_decay, true, false);
  TORCH_CHECK_VALUE(!settings.min_8bit_size || *settings.min_8bit_size >= 0, name_,
                    ": an override with min_8bit_size ", *settings.min_8bit_size,
                    " is invalid; it must be 0 or more");
}

void LowBitOptimizer::check_override(const at::Tensor& parameter, const LowBitOverride& settings) const {
  check_override(settings);
  TORCH_CHECK_VALUE(parameter.defined() && steps(parameter), name_,
                    ": an override is for a parameter that this optimizer does not step; add the parameter to"
                    " one of its groups first");
  TORCH_CHECK_VALUE((!settings.optim_bits && !settings.min_8bit_size) ||
                        state().find(parameter.unsafeGetTensorImpl()) == state().end(),
                    name_, ": a parameter of shape ", parameter.sizes(),
                    " has states already, so that their bits are fixed; override them before the first step");
}

void LowBitOptimizer::override_config(const at::Tensor& parameter, const LowBitOverride& settings) {
  check_override(parameter, settings);
  LowBitOverride& all = *overrides_.try_emplace(parameter).first;
  const auto set = [](auto& old, const auto& value) {
    if (value) old = value;
  };
  set(all.optim_bits, settings.optim_bits), set(all.min_8bit_size, settings.min_8bit_size);
  set(all.lr, settings.lr), set(all.beta1, settings.beta1), set(all.beta2, settings.beta2);
  set(all.eps, settings.eps), set(all.weight_decay, settings.weight_decay);
}

void LowBitOptimizer::override_config(const torch::nn::Module& module, const LowBitOverride& settings) {
  std::vector<at::Tensor> stepped;
  for (const at::Tensor& parameter : module.parameters())
    if (steps(parameter)) stepped.push_back(parameter);
  TORCH_CHECK_VALUE(!stepped.empty(), name_, ": an override is for a module '", module.name(),
                    "' of which this optimizer steps no parameter; give it a module that it trains");
  for (const at::Tensor& parameter : stepped) check_override(parameter, settings);
  for (const at::Tensor& parameter : stepped) override_config(parameter, settings);
}

void LowBitOptimizer::override_config(const torch::nn::Module& module, const std::string& name,
                                      const LowBitOverride& settings) {
  const auto parameters = module.named_parameters();
  const at::Tensor* const parameter = parameters.find(name);
  TORCH_CHECK_VALUE(parameter, name_, ": an override is for '", name,
                    "', and the module has no such parameter", did_you_mean(name, parameters.keys()));
  override_config(*parameter, settings);
}

void LowBitOptimizer::replaced_parameter(const at::Tensor& before, const at::Tensor& now) {
  const LowBitOverride* const found = overrides_.find(before);
  if (!found) return;
  const LowBitOverride settings = *found;
  overrides_.erase(before);
  overrides_.insert_or_assign(now, settings);
}

LowBitOptimizer::Hyperparameters LowBitOptimizer::hyperparameters_of(
    const at::Tensor& parameter, const torch::optim::OptimizerOptions& options) const {
  Hyperparameters h = hyperparameters(options);
  if (const LowBitOverride* const own = overrides_.find(parameter)) {
    h.lr = own->lr.value_or(h.lr);
    h.beta1 = own->beta1.value_or(h.beta1);
    h.beta2 = own->beta2.value_or(h.beta2);
    h.eps = own->eps.value_or(h.eps);
    h.weight_decay = own->weight_decay.value_or(h.weight_decay);
  }
  return h;
}

int64_t LowBitOptimizer::optim_bits(const at::Tensor& parameter) const {
  const LowBitOverride* const own = overrides_.find(parameter);
  const int64_t least = own ? own->min_8bit_size.value_or(min_8bit_size_) : min_8bit_size_;
  const int64_t bits = own ? own->optim_bits.value_or(form_.bits) : form_.bits;
  const bool has_whole_blocks = bits != 4 || parameter.numel() % kState4Block == 0;
  return parameter.numel() < least || !has_whole_blocks ? 32 : bits;
}

void LowBitOptimizer::add_formats(std::vector<StateFormat>& formats, const at::Tensor& parameter,
                                  std::string values, std::string absmax) const {
  const int64_t bits = optim_bits(parameter);
  StateShape shape(parameter, bits);
  formats.push_back({.name = std::move(values), .sizes = std::move(shape.values), .dtype = shape.dtype});
  if (bits == 32) return;
  formats.push_back({.name = std::move(absmax), .sizes = std::move(shape.absmax), .dtype = at::kFloat});
}

std::vector<StateFormat> LowBitOptimizer::state_formats(const at::Tensor& parameter) const {
  std::vector<StateFormat> formats = {StateFormat::step()};
  add_formats(formats, parameter, "state1", "absmax1");
  if (kernels::has_second_state(form_.rule)) add_formats(formats, parameter, "state2", "absmax2");
  return formats;
}

void LowBitOptimizer::add_values(Slot& slot, at::Tensor& values, at::Tensor& absmax) const {
  const int64_t bits = optim_bits(slot.parameter);
  const StateShape shape(slot.parameter, bits);
  check_fits(name_, values, slot.parameter, shape.values, shape.dtype);
  check_fits(name_, absmax, slot.parameter, shape.absmax, at::kFloat);
  slot.states.push_back(fit(values, slot.parameter, shape.values, shape.dtype));
  if (bits != 32) slot.states.push_back(fit(absmax, slot.parameter, shape.absmax, at::kFloat));
}

void LowBitOptimizer::add_state(Slot& slot, const torch::optim::OptimizerOptions& /*options*/,
                                at::ScalarType /*dtype*/) {
  auto& state = state_in<LowBitParamState>(state_[slot.parameter.unsafeGetTensorImpl()]);
  add_values(slot, state.state1(), state.absmax1());
  if (kernels::has_second_state(form_.rule)) add_values(slot, state.state2(), state.absmax2());
  slot.step = step_on(slot.parameter.device(), state.step());
}

void LowBitOptimizer::set_hyperparameters(torch::optim::OptimizerOptions& /*options*/,
                                          const Hyperparameters& /*settings*/) const {
  TORCH_INTERNAL_ASSERT(false, "only optimizers that are in bitsandbytes take its settings");
}

void LowBitOptimizer::call_kernel(const Batch& /*batch*/,
                                  const torch::optim::OptimizerOptions& /*options*/) const {
  TORCH_INTERNAL_ASSERT(false, "update() calls the kernels of low-bit optimizers");
}

void LowBitOptimizer::update(const std::vector<Slot>& slots, const Batch& batch,
                             const torch::optim::OptimizerOptions& options) {
  if (batch.parameters.front().is_cpu()) {
    update_on_cpu(slots, batch, options);
  } else {
    update_elsewhere(slots, batch, options);
  }
}

void LowBitOptimizer::update_on_cpu(const std::vector<Slot>& slots, const Batch& batch,
                                    const torch::optim::OptimizerOptions& options) const {
  if (batch.found_inf && *batch.found_inf->const_data_ptr<float>() != 0) return;
  std::vector<Operand> parameters, gradients;
  std::vector<BlockwiseUpdate> updates;
  for (size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor& parameter = batch.parameters[i];
    parameters.emplace_back(parameter, parameter.scalar_type());
    gradients.emplace_back(batch.gradients[i], parameter.scalar_type());
    const States states(slots[i].states);
    const Hyperparameters h = hyperparameters_of(parameter, options);
    BlockwiseUpdate update;
    update.rule = form_.rule;
    update.element = element_of(parameter.scalar_type());
    update.parameter = parameters.back().plain.mutable_data_ptr();
    update.gradient = gradients.back().plain.mutable_data_ptr();
    update.state1 = update_state(states.state1, states.absmax1);
    if (states.state2.defined()) update.state2 = update_state(states.state2, states.absmax2);
    update.has_4_bit_codes = optim_bits(parameter) == 4;
    update.count = parameter.numel();
    update.factors = factors_of(form_, h, *slots[i].step.const_data_ptr<float>());
    if (batch.grad_scale) update.grad_scale = *batch.grad_scale->const_data_ptr<float>();
    update.maximize = h.maximize;
    update.rounds_stochastically = rounds_stochastically(parameter);
    update.seed = draw_seed();
    update.stream = static_cast<int64_t>(stream());
    update.first_draw = slots[i].first_draw;
    updates.push_back(update);
  }
  kernels::aten::device_kernels(at::kCPU).update_blockwise(updates);
  for (const Operand& parameter : parameters) {
    parameter.write_back();
    parameter.original.unsafeGetTensorImpl()->bump_version();
  }
  for (size_t i = 0; batch.grad_scale && i < gradients.size(); ++i) gradients[i].write_back();
}

void LowBitOptimizer::update_elsewhere(const std::vector<Slot>& slots, const Batch& batch,
                                       const torch::optim::OptimizerOptions& options) {
  for (size_t i = 0; i < slots.size(); ++i) {
    const Operand parameter(batch.parameters[i], batch.parameters[i].scalar_type());
    const Operand gradient(batch.gradients[i], batch.parameters[i].scalar_type());
    const States states(slots[i].states);
    const Hyperparameters h = hyperparameters_of(batch.parameters[i], options);
    BlockwiseUpdate update;
    update.rule = form_.rule;
    update.has_4_bit_codes = optim_bits(batch.parameters[i]) == 4;
    update.factors = factors_of(form_, h, /*step=*/1.0);
    update.maximize = h.maximize;
    update.seed = draw_seed();
    update.first_draw = slots[i].first_draw;
    UpdateTensors tensors = {parameter.plain,
                             gradient.plain,
                             states.state1,
                             states.absmax1,
                             states.state2,
                             states.absmax2,
                             batch.grad_scale.value_or(at::Tensor()),
                             batch.found_inf.value_or(at::Tensor()),
                             at::Tensor()};
    if (rounds_stochastically(batch.parameters[i])) tensors.stream = stream_on(batch.parameters[i].device());
    update_by_operations(update, tensors, factors_of_step(form_.rule, h, slots[i].step));
    parameter.write_back();
    if (batch.grad_scale) gradient.write_back();
  }
}

}  // namespace mantissa
