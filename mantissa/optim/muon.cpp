#include "mantissa/optim/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/optim/serialize.h>

#include "mantissa/optim/blockwise.h"
#include "mantissa/optim/blockwise_internal.h"
#include "mantissa/optim/fused_optimizer_internal.h"
#include "mantissa/optim/optimizer_internal.h"
#include "mantissa/optim/stochastic_round.h"

namespace mantissa {

/// Every comparison is false for NaN, so NaN is refused too.
void validate(const char* optimizer, const MuonOptions& o) {
  const auto check = [&](const char* name, const auto& value, bool is_valid, const char* cure) {
    TORCH_CHECK_VALUE(is_valid, optimizer, ": ", name, " ", value, " is invalid; ", cure);
  };
  const auto [beta1, beta2] = o.betas();
  const auto [a, b, c] = o.ns_coefficients();
  const std::string fn = o.adjust_lr_fn().value_or("original");
  check("learning rate", o.lr(), o.lr() >= 0, "lr must be 0 or more");
  check("weight_decay", o.weight_decay(), o.weight_decay() >= 0, "weight_decay must be 0 or more");
  check("momentum", o.momentum(), o.momentum() >= 0 && o.momentum() <= 1, "momentum lies in [0, 1]");
  check("eps", o.eps(), o.eps() >= 0, "eps must be 0 or more");
  check("first beta", beta1, beta1 >= 0 && beta1 < 1, "betas lie in [0, 1)");
  check("second beta", beta2, beta2 >= 0 && beta2 < 1, "betas lie in [0, 1)");
  check("ns_steps", o.ns_steps(), o.ns_steps() >= 0 && o.ns_steps() < 100, "ns_steps lies in [0, 99]");
  for (const double coefficient : {a, b, c})
    check("number in ns_coefficients", coefficient, std::isfinite(coefficient), "it must be finite");
  check("adjust_lr_fn", fn, fn == "original" || fn == "match_rms_adamw",
        "choose original or match_rms_adamw");
}

namespace {

/// Returns the learning rate for a matrix of this shape.
double adjusted_lr(double lr, const MuonOptions::adjust_lr_fn_t& adjust_lr_fn, const at::Tensor& matrix) {
  const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
  if (adjust_lr_fn == "match_rms_adamw") return lr * (0.2 * std::sqrt(std::max(rows, columns)));
  return lr * std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

void MuonOptions::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("lr", c10::IValue(lr_));
  archive.write("weight_decay", c10::IValue(weight_decay_));
  archive.write("momentum", c10::IValue(momentum_));
  archive.write("nesterov", c10::IValue(nesterov_));
  archive.write("ns_coefficients", c10::IValue(ns_coefficients_));
  archive.write("eps", c10::IValue(eps_));
  archive.write("ns_steps", c10::IValue(ns_steps_));
  archive.write("adjust_lr_fn", c10::IValue(adjust_lr_fn_));
  archive.write("use_muon", c10::IValue(use_muon_));
  archive.write("betas", c10::IValue(betas_));
}

void MuonOptions::serialize(torch::serialize::InputArchive& archive) {
  read_if_present(archive, "lr", lr_);
  read_if_present(archive, "weight_decay", weight_decay_);
  read_if_present(archive, "momentum", momentum_);
  read_if_present(archive, "nesterov", nesterov_);
  read_if_present(archive, "ns_coefficients", ns_coefficients_);
  read_if_present(archive, "eps", eps_);
  read_if_present(archive, "ns_steps", ns_steps_);
  read_if_present(archive, "adjust_lr_fn", adjust_lr_fn_);
  read_if_present(archive, "use_muon", use_muon_);
  read_if_present(archive, "betas", betas_);
}

void MuonParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_if_defined(archive, "step", step_);
  write_if_defined(archive, "momentum_buffer", momentum_buffer_);
  write_if_defined(archive, "momentum_buffer_absmax", momentum_buffer_absmax_);
  write_if_defined(archive, "exp_avg", exp_avg_);
  write_if_defined(archive, "exp_avg_absmax", exp_avg_absmax_);
  write_if_defined(archive, "exp_avg_sq", exp_avg_sq_);
  write_if_defined(archive, "exp_avg_sq_absmax", exp_avg_sq_absmax_);
}

void MuonParamState::serialize(torch::serialize::InputArchive& archive) {
  read_step(archive, step_);
  read_if_present(archive, "momentum_buffer", momentum_buffer_);
  read_if_present(archive, "momentum_buffer_absmax", momentum_buffer_absmax_);
  read_if_present(archive, "exp_avg", exp_avg_);
  read_if_present(archive, "exp_avg_absmax", exp_avg_absmax_);
  read_if_present(archive, "exp_avg_sq", exp_avg_sq_);
  read_if_present(archive, "exp_avg_sq_absmax", exp_avg_sq_absmax_);
}

Muon::Muon(const char* name, int64_t bits, const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const MuonOptions& defaults, const LowBitOptions& options)
    : LowBitOptimizer(name, {kernels::UpdateRule::kAdam, bits, /*decouples_decay=*/true}, groups,
                      validated(name, defaults), options),
      name_(name) {
  validate_groups<MuonOptions>(name, param_groups());
  for (const auto& group : param_groups()) checked_options(group);
}

const torch::optim::OptimizerOptions& Muon::checked_options(
    const torch::optim::OptimizerParamGroup& group) const {
  const MuonOptions& options = options_of<MuonOptions>(name_, group);
  validate(name_, options);
  for (const at::Tensor& parameter : group.params()) {
    TORCH_CHECK_VALUE(!options.use_muon() || parameter.dim() == 2, name_,
                      " only supports 2D parameters, and one has the shape ", parameter.sizes(),
                      "; put it into a group with use_muon(false), which AdamW steps");
  }
  return options;
}

void Muon::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
  save_draws(archive);
}

void Muon::load(torch::serialize::InputArchive& archive) {
  load_optimizer<MuonParamState, MuonOptions>(name_, "ns_coefficients", archive, *this);
  load_draws(archive);
}

LowBitHyperparameters Muon::hyperparameters(const torch::optim::OptimizerOptions& options) const {
  const auto& o = static_cast<const MuonOptions&>(options);
  const auto [beta1, beta2] = o.betas();
  return {o.lr(), o.use_muon() ? o.momentum() : beta1, beta2, o.eps(), o.weight_decay(), /*maximize=*/false};
}

std::vector<StateFormat> Muon::state_formats(const at::Tensor& parameter) const {
  const auto has_it = [&](const auto& group) {
    const auto& all = group.params();
    return std::any_of(all.begin(), all.end(), [&](const at::Tensor& own) { return own.is_same(parameter); });
  };
  const auto group = std::find_if(param_groups().begin(), param_groups().end(), has_it);
  std::vector<StateFormat> formats;
  if (group == param_groups().end() || static_cast<const MuonOptions&>(group->options()).use_muon()) {
    add_formats(formats, parameter, "momentum_buffer", "momentum_buffer_absmax");
    return formats;
  }
  formats.push_back(StateFormat::step());
  add_formats(formats, parameter, "exp_avg", "exp_avg_absmax");
  add_formats(formats, parameter, "exp_avg_sq", "exp_avg_sq_absmax");
  return formats;
}

void Muon::add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType /*dtype*/) {
  auto& state = state_in<MuonParamState>(state_[slot.parameter.unsafeGetTensorImpl()]);
  if (static_cast<const MuonOptions&>(options).use_muon()) {
    add_values(slot, state.momentum_buffer(), state.momentum_buffer_absmax());
    return;
  }
  add_values(slot, state.exp_avg(), state.exp_avg_absmax());
  add_values(slot, state.exp_avg_sq(), state.exp_avg_sq_absmax());
  slot.step = step_on(slot.parameter.device(), state.step());
}

void Muon::update(const std::vector<Slot>& slots, const Batch& batch,
                  const torch::optim::OptimizerOptions& options) {
  const auto& own = static_cast<const MuonOptions&>(options);
  if (!own.use_muon()) return LowBitOptimizer::update(slots, batch, options);
  const bool is_on_cpu = batch.parameters.front().is_cpu();
  if (is_on_cpu && batch.found_inf && *batch.found_inf->const_data_ptr<float>() != 0) return;
  for (size_t i = 0; i < slots.size(); ++i) update_matrix(slots[i], batch, i, own);
}

void Muon::update_matrix(const Slot& slot, const Batch& batch, size_t index, const MuonOptions& options) {
  const at::Tensor& parameter = batch.parameters[index];
  const Hyperparameters h = hyperparameters_of(parameter, options);
  const at::Tensor found_inf =
      batch.found_inf && !parameter.is_cpu() ? *batch.found_inf : at::Tensor();  // the CPU skips by itself
  at::Tensor gradient = batch.gradients[index].to(at::kFloat);
  if (batch.grad_scale) {
    gradient = gradient / *batch.grad_scale;
    write_unless(found_inf, batch.gradients[index], gradient);
  }
  const bool has_codes = slot.states.size() > 1;
  const at::Tensor before =
      has_codes ? dequantize_blockwise({slot.states[0], slot.states[1]}) : slot.states[0];
  const at::Tensor momentum = before.lerp(gradient, 1 - h.beta1);
  const at::Tensor direction =
      zeropower_via_newtonschulz(options.nesterov() ? gradient.lerp(momentum, h.beta1) : momentum,
                                 options.ns_coefficients(), options.ns_steps(), h.eps);
  at::Tensor value = parameter.to(at::kFloat) * (1 - h.lr * h.weight_decay);
  value.add_(direction, -adjusted_lr(h.lr, options.adjust_lr_fn(), parameter));
  write_matrix(slot, parameter, value, found_inf);
  if (!has_codes) return write_unless(found_inf, slot.states[0], momentum);
  const BlockwiseCodes encoded = quantize_blockwise(momentum);
  write_unless(found_inf, slot.states[0], encoded.codes);
  write_unless(found_inf, slot.states[1], encoded.absmax);
}

void Muon::write_matrix(const Slot& slot, const at::Tensor& parameter, const at::Tensor& value,
                        const at::Tensor& found_inf) {
  if (!rounds_stochastically(parameter)) return write_unless(found_inf, parameter, value);
  // Draws are counted in memory order.
  const at::Tensor rounded = at::empty_like(parameter), in_order = at::empty_like(parameter, at::kFloat);
  in_order.copy_(value);
  if (parameter.is_cpu()) {
    stochastic_round_(rounded, in_order, draw_seed(), stream(), slot.first_draw);
  } else {
    stochastic_round_(rounded, in_order, draw_seed(), stream_on(parameter.device()), slot.first_draw);
  }
  write_unless(found_inf, parameter, rounded);
}

}  // namespace mantissa
