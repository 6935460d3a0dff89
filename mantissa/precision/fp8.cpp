#include "mantissa/precision/fp8.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/fp8/fp8_autocast.h"

namespace mantissa {
namespace {

constexpr const char* kFp8MixedMode = "precision 'fp8-mixed'";

std::string name_of(at::ScalarType weights) {
  TORCH_CHECK_VALUE(weights == at::kHalf || weights == at::kBFloat16,
                    "TransformerEngine: weights can be kept in Half or BFloat16, got ",
                    c10::toString(weights), "; use Fp8Mixed for Float");
  return weights == at::kHalf ? "transformer-engine-float16" : "transformer-engine";
}

at::Device checked(at::Device device, const std::string& mode) {
  TORCH_CHECK_NOT_IMPLEMENTED(device.is_cpu(), mode,
                              ": FP8 products are computed on the CPU only so far, not on ", device,
                              "; choose the device cpu, or bf16-mixed");
  return device;
}

/// While it lives, a forward pass has FP8 products, and others in `dtype`.
struct ForwardScope {
  ForwardScope(at::DeviceType device, at::ScalarType dtype, Scope outer_scope)
      : outer(std::move(outer_scope)), autocast(device, {.dtype = dtype}) {}
  Scope outer;
  Autocast autocast;
  Fp8Autocast fp8;
};

/// Ends a step of the layers, unless there was none.
void end_step(Fp8Layers& layers, StepResult& result) {
  if (result.is_known() && result.cause() == SkipCause::kNoGradients) return;
  layers.end_step(result.skipped());
}

/// Loads a state: the layers' part of it, and the rest through `load_rest`. Both are checked before either changes.
template <typename LoadRest>
std::vector<std::string> load(Fp8Layers& layers, const StateReader& state, const LoadRest& load_rest) {
  layers.check_state_dict(state);
  std::vector<std::string> differences = load_rest();
  for (std::string& difference : layers.load_state_dict(state)) differences.push_back(std::move(difference));
  return differences;
}

TrueDtypeOptions named(TrueDtypeOptions weights, at::ScalarType dtype) {
  weights.name = name_of(dtype);
  weights.layer_products = Format::kFloat8E4M3;
  return weights;
}

}  // namespace

Fp8Mixed::Fp8Mixed(at::Device device, Fp8LayerOptions options)
    : Precision("fp8-mixed", {.compute = Format::kBFloat16, .layer_products = Format::kFloat8E4M3}),
      device_(checked(device, kFp8MixedMode)),
      layers_(kFp8MixedMode, std::move(options)) {}

void Fp8Mixed::convert_module(torch::nn::Module& module) {
  layers_.check(module, /*is_cast=*/false);
  Precision::convert_module(module);
  layers_.convert(module);
}

Scope Fp8Mixed::forward_context() const {
  return std::make_shared<ForwardScope>(device_.type(), at::kBFloat16, nullptr);
}

at::Tensor Fp8Mixed::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

StepResult Fp8Mixed::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  StepResult result = Precision::step(optimizer, closure);
  end_step(layers_, result);
  return result;
}

StateDict Fp8Mixed::state_dict() const { return layers_.state_dict(); }

std::vector<std::string> Fp8Mixed::load_state_dict(const StateReader& state) {
  return load(layers_, state, [&] { return Precision::load_state_dict(state); });
}

TransformerEngine::TransformerEngine(at::ScalarType dtype, at::Device device, Fp8LayerOptions options,
                                     TrueDtypeOptions weights)
    : TrueDtype(dtype, named(std::move(weights), dtype)),
      dtype_(dtype),
      device_(checked(device, "precision '" + name() + "'")),
      layers_("precision '" + name() + "'", std::move(options)) {}

void TransformerEngine::convert_module(torch::nn::Module& module) {
  layers_.check(module, /*is_cast=*/true);
  TrueDtype::convert_module(module);
  layers_.convert(module);
}

Scope TransformerEngine::forward_context() const {
  return std::make_shared<ForwardScope>(device_.type(), dtype_, TrueDtype::forward_context());
}

StepResult TransformerEngine::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  StepResult result = TrueDtype::step(optimizer, closure);
  end_step(layers_, result);
  return result;
}

StateDict TransformerEngine::state_dict() const {
  StateDict state = TrueDtype::state_dict();
  state.merge(layers_.state_dict());
  return state;
}

std::vector<std::string> TransformerEngine::load_state_dict(const StateReader& state) {
  return load(layers_, state, [&] { return TrueDtype::load_state_dict(state); });
}

}  // namespace mantissa
