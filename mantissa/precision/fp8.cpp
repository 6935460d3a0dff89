#include "mantissa/precision/fp8.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_weight.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/trained_data.h"

namespace mantissa {
namespace {

std::string name_of(at::ScalarType weights) {
  TORCH_CHECK_VALUE(weights == at::kHalf || weights == at::kBFloat16,
                    "TransformerEngine: weights can be kept in Half or BFloat16, got ",
                    c10::toString(weights), "; use Fp8Mixed for Float");
  return weights == at::kHalf ? "transformer-engine-float16" : "transformer-engine";
}

/// Returns the options of a mode that the device can run.
Fp8LayerOptions checked(Fp8LayerOptions options, at::Device device, const std::string& mode) {
  check_fp8_native(mode, options.native, device, options.recipe);
  return options;
}

/// While it lives, a forward pass has FP8 products, and others in `dtype`.
struct ForwardScope {
  ForwardScope(at::DeviceType device, at::ScalarType dtype, Scope outer_scope)
      : outer(std::move(outer_scope)), autocast(device, {.dtype = dtype}) {}
  Scope outer;
  Autocast autocast;
  Fp8Autocast fp8;
};

/// While it lives inside a ForwardScope, products are ordinary ones.
struct BackwardScope {
  explicit BackwardScope(Scope outer_scope) : outer(std::move(outer_scope)), off({.enabled = false}) {}
  Scope outer;
  Fp8Autocast off;
};

/// Returns `options`, if the master weights that they need are there.
const Fp8LayerOptions& with_masters(const Fp8LayerOptions& options, const TrueDtypeOptions& weights,
                                    at::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      !options.primary_weights || weights.master_weights, "precision '", name_of(dtype),
      "': weights that are stored in FP8 are too coarse for an optimizer's updates, so they need "
      "master weights; set master_weights, or leave fp8_primary_weights out");
  return options;
}

/// Returns the weights of a module that another mode has stored in FP8.
std::vector<std::pair<at::Tensor, PackedDataPtr>> stored_by_a_mode(const torch::nn::Module& module) {
  std::vector<std::pair<at::Tensor, PackedDataPtr>> stored;
  for (const at::Tensor& weight : module.parameters())
    if (is_fp8_weight(weight) && weight_rule(weight)->belongs_to_mode())
      stored.emplace_back(weight, packed_data(weight));
  return stored;
}

TrueDtypeOptions named(TrueDtypeOptions weights, at::ScalarType dtype) {
  weights.name = name_of(dtype);
  weights.layer_products = Format::kFloat8E4M3;
  return weights;
}

}  // namespace

template <typename Base>
template <typename... Arguments>
Fp8Mode<Base>::Fp8Mode(at::Device device, at::ScalarType dtype, Fp8LayerOptions options, Arguments&&... base)
    : Base(std::forward<Arguments>(base)...),
      device_(device),
      dtype_(dtype),
      layers_("precision '" + this->name() + "'",
              checked(std::move(options), device, "precision '" + this->name() + "'")) {}

template <typename Base>
void Fp8Mode<Base>::convert_module(torch::nn::Module& module) {
  layers_.check(module, /*is_cast=*/this->traits().weights.has_value());
  Base::convert_module(module);
  layers_.convert(module);
}

template <typename Base>
void Fp8Mode<Base>::setup_optimizer(torch::optim::Optimizer& optimizer) {
  Base::setup_optimizer(optimizer);
  layers_.add_optimizer(weights_of(optimizer));
}

template <typename Base>
Scope Fp8Mode<Base>::forward_context() const {
  return std::make_shared<ForwardScope>(device_.type(), dtype_, Base::forward_context());
}

template <typename Base>
Scope Fp8Mode<Base>::backward_context() const {
  return std::make_shared<BackwardScope>(Base::backward_context());
}

template <typename Base>
StepResult Fp8Mode<Base>::step(torch::optim::Optimizer& optimizer, const Precision::LossClosure& closure) {
  StepResult result = Base::step(optimizer, closure);
  const bool was_no_step = result.is_known() && result.cause() == SkipCause::kNoGradients;
  if (!was_no_step) layers_.end_step(weights_of(optimizer), result.skipped());
  return result;
}

template <typename Base>
std::vector<at::Tensor> Fp8Mode<Base>::weights_of(const torch::optim::Optimizer& optimizer) const {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& stepped : main_params(optimizer)) weights.push_back(this->model_parameter(stepped));
  return weights;
}

template <typename Base>
StateDict Fp8Mode<Base>::state_dict() const {
  StateDict state = Base::state_dict();
  state.merge(layers_.state_dict());
  return state;
}

template <typename Base>
std::vector<std::string> Fp8Mode<Base>::load_state_dict(const StateReader& state) {
  layers_.check_state_dict(state);  // before the rest changes
  std::vector<std::string> differences = Base::load_state_dict(state);
  for (std::string& difference : layers_.load_state_dict(state)) differences.push_back(std::move(difference));
  return differences;
}

template class Fp8Mode<Precision>;
template class Fp8Mode<TrueDtype>;

Fp8Mixed::Fp8Mixed(at::Device device, Fp8LayerOptions options)
    : Fp8Mode(device, at::kBFloat16, std::move(options), "fp8-mixed",
              PrecisionTraits{.compute = Format::kBFloat16, .layer_products = Format::kFloat8E4M3}) {}

at::Tensor Fp8Mixed::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

TransformerEngine::TransformerEngine(at::ScalarType dtype, at::Device device, const Fp8LayerOptions& options,
                                     TrueDtypeOptions weights)
    : Fp8Mode{device, dtype, with_masters(options, weights, dtype), dtype, named(std::move(weights), dtype)},
      stores_weights_(options.primary_weights) {}

void TransformerEngine::convert_module(torch::nn::Module& module) {
  if (!stores_weights_) return Fp8Mode::convert_module(module);
  restore_from_fp8();  // the master weights of an earlier run are the most exact values
  const auto stored = stored_by_a_mode(module);
  Fp8Mode::convert_module(module);
  // Codes that were loaded from a file have the scales of their training.
  for (const auto& [weight, codes] : stored)
    if (is_fp8_weight(weight) && packed_data(weight)->description() == codes->description())
      replace_trained_data(weight, codes);
}

StepResult TransformerEngine::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  StepResult result = Fp8Mode::step(optimizer, closure);
  // After a skipped step, too: the scales of DelayedScaling have moved on, and the codes are those of the next product.
  const bool was_no_step = result.is_known() && result.cause() == SkipCause::kNoGradients;
  if (stores_weights_ && !was_no_step) store_in_fp8(optimizer);
  return result;
}

}  // namespace mantissa
