#include "mantissa/precision/true_dtype.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <c10/core/DefaultDtype.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/default_dtype.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/optim/optimizer_state.h"

namespace mantissa {
namespace {

std::string true_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "64-true";
    case at::kHalf:
      return "16-true";
    case at::kBFloat16:
      return "bf16-true";
    default:
      TORCH_CHECK_VALUE(false, "TrueDtype: weights can be kept in Double, Half or BFloat16, got ",
                        c10::toString(dtype), "; use the 32-true mode for Float");
  }
}

/// Throws before any member is made.
std::string checked_name(at::ScalarType dtype, const TrueDtypeOptions& options) {
  std::string name = options.name.empty() ? true_name(dtype) : options.name;
  const bool is_16_bit = dtype == at::kHalf || dtype == at::kBFloat16;
  TORCH_CHECK_VALUE(
      is_16_bit || (!options.keep_batchnorm_fp32 && !options.master_weights), name,
      ": its weights are not 16-bit, so keep_batchnorm_fp32 and master_weights have no meaning; leave "
      "them out, or choose 16-true or bf16-true");
  TORCH_CHECK_VALUE(dtype == at::kHalf || !options.scaler, name,
                    ": only fp16 gradients need a scaler; leave it out, or choose 16-true");
  return name;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() || module.as<torch::nn::BatchNorm2d>() ||
         module.as<torch::nn::BatchNorm3d>();
}

template <typename Convert>
void convert_own_tensors(torch::nn::Module& module, const Convert& convert) {
  for (at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    const at::Tensor gradient = parameter.grad();
    parameter.mutable_grad() = at::Tensor();  // set_data() refuses a dtype that differs from the gradient's
    parameter.set_data(convert(parameter.data()));
    if (gradient.defined()) parameter.mutable_grad() = convert(gradient);
  }
  for (at::Tensor& buffer : module.buffers(/*recurse=*/false)) buffer.set_data(convert(buffer.data()));
}

/// fp16's smallest number that has all its bits.
constexpr double kSmallestHalf = 0x1p-14;

/// The eps by which `optimizer` divides its updates of fp16 weights, if fp16 is too narrow for it and for the
/// squares of small gradients. Every optimizer that has such an option calls it eps.
std::optional<double> eps_below_fp16(const torch::optim::Optimizer& optimizer) {
  StateDict state;
  try {
    state = optimizer_state(optimizer);
  } catch (const c10::Error&) {  // one that cannot be saved tells nothing of its options
    return std::nullopt;
  }
  if (state.contains("stochastic_rounding_seed")) return std::nullopt;  // it computes and keeps float32
  const StateReader groups = StateReader(state).at("param_groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& parameters = optimizer.param_groups()[i].params();
    const auto option = groups.at(i).find("eps");
    const bool is_fp16 = std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
      return parameter.scalar_type() == at::kHalf;
    });
    if (is_fp16 && option && option->to_double() < kSmallestHalf) return option->to_double();
  }
  return std::nullopt;
}

}  // namespace

TrueDtype::TrueDtype(at::ScalarType dtype, TrueDtypeOptions options)
    : ScaledPrecision{checked_name(dtype, options), std::move(options.scaler)},  // braces: in this order
      dtype_(dtype),
      keep_batchnorm_fp32_(options.keep_batchnorm_fp32),
      use_master_weights_(options.master_weights) {
  if (dtype == at::kHalf || dtype == at::kBFloat16) enable_cpu_kernels_by_default();
}

void TrueDtype::convert_module(torch::nn::Module& module) {
  ScaledPrecision::convert_module(module);
  const auto convert_part = [&](torch::nn::Module& part) {
    const at::ScalarType to = keep_batchnorm_fp32_ && is_batch_norm(part) ? at::kFloat : dtype_;
    convert_own_tensors(part, [to](const at::Tensor& x) { return x.is_floating_point() ? x.to(to) : x; });
  };
  convert_part(module);  // modules(include_self) would ask for a shared_ptr to it
  for (const auto& part : module.modules(/*include_self=*/false)) convert_part(*part);
}

void TrueDtype::warn_of_eps(const torch::optim::Optimizer& optimizer) {
  if (dtype_ != at::kHalf || use_master_weights_ || !looked_at_.insert(&optimizer).second) return;
  const std::optional<double> eps = eps_below_fp16(optimizer);
  if (!eps || warned_of_eps_) return;
  warned_of_eps_ = true;
  TORCH_WARN(
      name(), ": the optimizer divides fp16 updates by a root plus eps ", *eps,
      ". fp16 is too narrow for that eps, and the squares of small gradients are 0 in it, so that weights "
      "become nan or leap; set eps to 1e-4 or more, or choose master_weights, a fused optimizer with "
      "stochastic_rounding, SGD, 16-mixed or bf16-true");
}

void TrueDtype::setup_optimizer(torch::optim::Optimizer& optimizer) {
  if (!use_master_weights_) return warn_of_eps(optimizer);
  for (const auto& masters : master_weights_)
    if (masters->are_stepped_by(optimizer)) return;  // set up before: a second fit, say
  auto made = std::make_unique<MasterWeights>(optimizer);
  // What an optimizer before it left behind, at the same address or over the same parameters.
  std::erase_if(master_weights_, [&](const auto& masters) {
    return masters->belongs_to(optimizer) || masters->share_a_parameter_with(*made);
  });
  master_weights_.push_back(std::move(made));
  master_weights_.back()->for_each([&](const at::Tensor& parameter, const at::Tensor& master) {
    set_parameter_name(master, parameter_name(parameter));
  });
}

StepResult TrueDtype::optimizer_step(torch::optim::Optimizer& optimizer,
                                     const std::function<at::Tensor()>& closure) {
  warn_of_eps(optimizer);  // of a loop that does not call setup_optimizer()
  MasterWeights* masters = nullptr;
  for (const auto& candidate : master_weights_)
    if (candidate->belongs_to(optimizer)) masters = candidate.get();
  TORCH_CHECK_VALUE(
      masters || !use_master_weights_, name(),
      ": optimizer_step() of an optimizer that has no float32 copies of the weights: either "
      "setup_optimizer() was not called once after it was made, or another optimizer with some of the "
      "same weights was set up since and has taken them over; give every weight to one optimizer");
  TORCH_CHECK_TYPE(
      !masters || !dynamic_cast<torch::optim::LBFGS*>(&optimizer), name(),
      ": LBFGS evaluates its loss several times a step, which float32 copies of the weights cannot follow; "
      "use another optimizer, or no master weights");
  if (masters) masters->take_over_changes();
  const StepResult result = ScaledPrecision::optimizer_step(optimizer, closure);
  if (masters && !result.skipped) masters->copy_to_model();
  return result;
}

Scope TrueDtype::tensor_init_context() const { return std::make_shared<DefaultDtypeGuard>(dtype_); }

at::Tensor TrueDtype::convert_input(const at::Tensor& x) const {
  return x.is_floating_point() ? x.to(dtype_) : x;
}

at::Tensor TrueDtype::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

at::Tensor to_default_dtype(const at::Tensor& y) {
  return y.is_floating_point() ? y.to(c10::get_default_dtype_as_scalartype()) : y;
}

}  // namespace mantissa
