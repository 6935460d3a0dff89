#include "mantissa/precision/true_dtype.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/default_dtype.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/steps_16bit_weights.h"
#include "mantissa/precision/state_keys_internal.h"
#include "mantissa/weights/float32_parameters.h"

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

/// Throws before any member is constructed.
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
    parameter.set_data(convert(parameter.data()));
    if (gradient.defined()) parameter.mutable_grad() = convert(gradient);
  }
  for (at::Tensor& buffer : module.buffers(/*recurse=*/false)) buffer.set_data(convert(buffer.data()));
}

/// Returns the eps by which `optimizer` divides its updates of fp16 weights, if fp16 is too narrow for it and
/// for the squares of small gradients. Every optimizer that has such an option calls it eps.
std::optional<double> eps_below_fp16(const torch::optim::Optimizer& optimizer) {
  const auto* const stepper = dynamic_cast<const Steps16BitWeights*>(&optimizer);
  if (stepper && stepper->updates_in_float32()) return std::nullopt;
  StateDict state;
  try {
    state = optimizer_state(optimizer);
  } catch (const c10::Error&) {  // an optimizer that cannot be saved does not show its options
    return std::nullopt;
  }
  const StateReader groups = StateReader(state).at("param_groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& parameters = optimizer.param_groups()[i].params();
    const auto option = groups.at(i).find("eps");
    const bool is_fp16 = std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
      return parameter.requires_grad() && parameter.scalar_type() == at::kHalf;
    });
    if (is_fp16 && option && option->to_double() < info(Format::kFloat16).smallest_normal)
      return option->to_double();
  }
  return std::nullopt;
}

at::Tensor first_parameter(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    if (!group.params().empty()) return group.params().front();
  return {};
}

PrecisionTraits traits_of(at::ScalarType dtype, const TrueDtypeOptions& options) {
  const Format format = format_of(dtype).value();
  return {.weights = format,
          .compute = format,
          .gradients = options.master_weights ? Format::kFloat32 : format,
          .scales_loss = options.scaler && options.scaler->is_enabled(),
          .master_weights = options.master_weights,
          .layer_products = options.layer_products};
}

}  // namespace

TrueDtype::TrueDtype(at::ScalarType dtype, TrueDtypeOptions options)
    // Braces, because the options are read before the scaler is moved out of them.
    : ScaledPrecision{checked_name(dtype, options), traits_of(dtype, options), std::move(options.scaler)},
      dtype_(dtype),
      keep_batchnorm_fp32_(options.keep_batchnorm_fp32) {
  if (dtype == at::kHalf || dtype == at::kBFloat16) enable_cpu_kernels_by_default();
}

void TrueDtype::convert_module(torch::nn::Module& module) {
  Precision::convert_module(module);
  const auto convert_part = [&](torch::nn::Module& part) {
    if (dynamic_cast<const KeepsFloat32*>(&part)) return;
    const at::ScalarType to = keep_batchnorm_fp32_ && is_batch_norm(part) ? at::kFloat : dtype_;
    convert_own_tensors(part, [to](const at::Tensor& x) { return x.is_floating_point() ? x.to(to) : x; });
  };
  convert_part(module);  // modules(include_self) would require a shared_ptr to it
  for (const auto& part : module.modules(/*include_self=*/false)) convert_part(*part);
}

void TrueDtype::warn_about_small_eps(const torch::optim::Optimizer& optimizer) {
  if (dtype_ != at::kHalf || traits().master_weights || has_warned_about_eps_) return;
  const at::Tensor first = first_parameter(optimizer);
  if (!first.defined() || !eps_checked_.try_emplace(first, true).second) return;
  const std::optional<double> eps = eps_below_fp16(optimizer);
  if (!eps) return;
  has_warned_about_eps_ = true;
  TORCH_WARN(
      name(), ": the optimizer divides fp16 updates by a root plus eps ", *eps,
      ". fp16 is too narrow for that eps, and the squares of small gradients are 0 in it, so that weights "
      "become nan or jump; set eps to 1e-4 or more, or choose master_weights, a fused optimizer with "
      "stochastic_rounding, SGD, 16-mixed or bf16-true");
}

MasterWeights* TrueDtype::masters_of(const torch::optim::Optimizer& optimizer) const {
  for (const SetUp& each : master_weights_)
    if (each.masters->are_stepped_by(optimizer)) return each.masters.get();
  return nullptr;
}

at::Tensor TrueDtype::model_parameter(const at::Tensor& parameter) const {
  const at::Tensor* model = models_.find(parameter);
  return model ? *model : parameter;
}

void TrueDtype::setup_optimizer(torch::optim::Optimizer& optimizer) {
  ScaledPrecision::setup_optimizer(optimizer);
  if (!traits().master_weights) return warn_about_small_eps(optimizer);
  const auto known = std::find_if(master_weights_.begin(), master_weights_.end(),
                                  [&](const SetUp& each) { return each.masters->are_stepped_by(optimizer); });
  if (known != master_weights_.end()) {  // set up before, for example by an earlier fit
    begin_run_if_over();
    if (known->run == run_) return;
    known->run = run_;
    std::rotate(known, known + 1, master_weights_.end());  // the keys in a state follow the order of this run
    return;
  }
  auto made = std::make_unique<MasterWeights>(optimizer);
  begin_run_if_over();
  // An earlier optimizer may have left master weights behind, at the same address or for the same parameters.
  std::erase_if(master_weights_, [&](const SetUp& each) {
    return each.masters->belongs_to(optimizer) || each.masters->share_a_parameter_with(*made);
  });
  models_.erase_expired();
  remember_models(*made);
  master_weights_.push_back({std::move(made), run_});
  watch(optimizer);  // its weights are others now
}

void TrueDtype::remember_models(const MasterWeights& masters) {
  masters.for_each([&](const at::Tensor& parameter, const at::Tensor& master) {
    models_.insert_or_assign(master, parameter);
  });
}

void TrueDtype::add_masters(torch::optim::Optimizer& optimizer) {
  MasterWeights* const masters = traits().master_weights ? masters_of(optimizer) : nullptr;
  if (masters && masters->add_parameters(optimizer)) remember_models(*masters);
}

void TrueDtype::unscale_gradients(torch::optim::Optimizer& optimizer) {
  add_masters(optimizer);
  ScaledPrecision::unscale_gradients(optimizer);
}

at::Tensor TrueDtype::clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                     GradientClipAlgorithm algorithm) {
  add_masters(optimizer);
  return ScaledPrecision::clip_gradients(optimizer, clip_val, algorithm);
}

void TrueDtype::begin_run_if_over() {
  if (std::exchange(is_run_over_, false)) ++run_;
}

void TrueDtype::teardown() {
  ScaledPrecision::teardown();
  is_run_over_ = true;
}

void TrueDtype::check_line_search() const {
  ScaledPrecision::check_line_search();
  TORCH_CHECK_TYPE(
      !traits().master_weights, name(),
      ": LBFGS evaluates its loss several times a step, which master weights cannot follow; use another "
      "optimizer, or no master weights");
}

StepResult TrueDtype::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  if (!traits().master_weights) {
    warn_about_small_eps(optimizer);  // for a loop that does not call setup_optimizer()
    return ScaledPrecision::step(optimizer, closure);
  }
  if (has_line_search(optimizer)) check_line_search();
  MasterWeights* const masters = masters_of(optimizer);
  TORCH_CHECK_VALUE(
      masters, name(),
      ": optimizer_step() of an optimizer without master weights: either setup_optimizer() was not called "
      "once after it was made, or another optimizer with some of the same weights was set up since and has "
      "taken them over; give every weight to one optimizer");
  add_masters(optimizer);
  masters->copy_changes_from_model();
  const StepResult result = ScaledPrecision::step(optimizer, closure);
  // If only the device knows the outcome of a step, the master weights are copied in any case: after a
  // skipped step they are unchanged.
  if (!result.is_known() || !result.skipped()) masters->copy_to_model();
  return result;
}

void TrueDtype::store_in_fp8(const torch::optim::Optimizer& optimizer) {
  if (MasterWeights* const masters = masters_of(optimizer)) masters->store_in_fp8();
}

void TrueDtype::restore_from_fp8() {
  for (const SetUp& each : master_weights_) each.masters->restore_from_fp8();
}

std::vector<TrueDtype::NamedMaster> TrueDtype::named_masters() const {
  std::vector<NamedMaster> named;
  std::unordered_set<std::string> used;
  size_t optimizer = 0;
  for (const SetUp& each : master_weights_) {
    if (each.run != run_) continue;
    size_t number = 0;
    each.masters->for_each([&](const at::Tensor& parameter, const at::Tensor& master) {
      std::string name = parameter_name(parameter);
      if (name.empty()) name = c10::str("optimizer ", optimizer, ", 16-bit parameter ", number);
      std::string key = name;
      for (int n = 2; !used.insert(key).second; ++n) key = c10::str(name, "#", n);
      named.push_back({key, master.detach(), key != name});
      ++number;
    });
    ++optimizer;
  }
  return named;
}

StateDict TrueDtype::state_dict() const {
  StateDict state = ScaledPrecision::state_dict();
  StateDict masters;
  for (const NamedMaster& each : named_masters()) masters.emplace(each.key, each.weight);
  if (!masters.empty()) state.emplace(kMasterWeightsKey, std::move(masters));
  return state;
}

std::vector<std::string> TrueDtype::load_state_dict(const StateReader& state) {
  const auto saved = state.find(kMasterWeightsKey);
  // If the state has no master weights, those made from the checkpoint's weights are as good.
  std::vector<NamedMaster> own =
      saved && traits().master_weights ? named_masters() : std::vector<NamedMaster>();
  // Mantissa once saved only the first of several master weights with one name.
  const size_t lost =
      std::erase_if(own, [&](const NamedMaster& each) { return each.is_repeated && !saved->find(each.key); });
  for (const NamedMaster& each : own) {
    const StateReader entry = saved->at(each.key);
    const at::Tensor& value = entry.to_tensor();
    if (value.sizes() != each.weight.sizes() || value.scalar_type() != each.weight.scalar_type())
      entry.fail(c10::str("is ", value.scalar_type(), " ", value.sizes(), ", and this run has ",
                          each.weight.scalar_type(), " ", each.weight.sizes(),
                          "; resume with the model that was saved"));
  }
  std::vector<std::string> differences = ScaledPrecision::load_state_dict(state);
  const at::NoGradGuard no_grad;
  for (const NamedMaster& each : own) at::Tensor(each.weight).copy_(saved->at(each.key).to_tensor());
  if (!own.empty())
    for (const SetUp& each : master_weights_)
      if (each.run == run_) each.masters->were_loaded();
  if (lost > 0)
    differences.push_back(c10::str("it lacks ", lost,
                                   " master weights of modules whose weights have equal names, "
                                   "so these start at the model's 16-bit weights"));
  return differences;
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
