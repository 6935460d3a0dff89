#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "mantissa/precision/fp8_layers.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa {

/// What the FP8 modes have in common. `Base`, Precision or TrueDtype, decides about the weights.
template <typename Base>
class Fp8Mode : public Base {
 public:
  Fp8Layers& fp8_layers() { return layers_; }

  std::optional<at::DeviceType> device_type() const override { return device_.type(); }
  std::vector<LayerReport> layer_report() const override { return layers_.report(); }
  void sample_layers(LayerSampling sampling) override { layers_.sample(sampling); }
  std::map<std::string, LayerStatistics> layer_statistics() const override { return layers_.statistics(); }
  std::string layer_note() const override { return layers_.note(device_); }
  void set_max_reduction(const Precision::MaxReduction& reduction) override {
    layers_.set_amax_reduction(reduction);
  }
  void convert_module(torch::nn::Module& module) override;
  void setup_optimizer(torch::optim::Optimizer& optimizer) override;
  Scope forward_context() const override;
  Scope backward_context() const override;
  StateDict state_dict() const override;
  std::vector<std::string> load_state_dict(const StateReader& state) override;

 protected:
  /// `dtype`: of operations that are not computed in FP8. `base`: the arguments of Base.
  template <typename... Arguments>
  Fp8Mode(at::Device device, at::ScalarType dtype, Fp8LayerOptions options, Arguments&&... base);

  StepResult step(torch::optim::Optimizer& optimizer, const Precision::LossClosure& closure) override;

 private:
  /// Returns the model's parameters that `optimizer` steps, directly or through their master weights.
  std::vector<at::Tensor> weights_of(const torch::optim::Optimizer& optimizer) const;

  at::Device device_;
  at::ScalarType dtype_;
  Fp8Layers layers_;
};

extern template class Fp8Mode<Precision>;
extern template class Fp8Mode<TrueDtype>;

/// "fp8-mixed": the three products of torch::nn::Linear layers are computed in FP8, all other operations under autocast to
/// bfloat16. All weights stay as they were built, usually in float32.
///
/// Weights:  see Fp8Layers: optimizers, files and checkpoints see ordinary weights.
/// Numerics: a layer computes as linear_fp8(): inputs and results are bfloat16, and sums are float32.
/// Scales:   those of a layer are updated once per step of the optimizer that steps its weight. Transformer Engine updates
///           them in each forward and backward pass; the two agree if a step has one micro-batch.
/// Memory:   that of bf16-mixed. A layer keeps the codes of its input for backward, and those of its weight: 1 byte per
///           value.
/// Devices:  fp8_support() tells which devices have FP8 instructions. All others multiply the codes in float32.
/// Errors:   those of Fp8Layers::check(), from convert_module() and before anything changes.
///           c10::ValueError if native products are required on a device that has none.
/// Source:   Micikevicius et al. 2022, arXiv:2209.05433; Transformer Engine.
class Fp8Mixed final : public Fp8Mode<Precision> {
 public:
  explicit Fp8Mixed(at::Device device, Fp8LayerOptions options = {});

  at::Tensor convert_output(const at::Tensor& y) const override;
};

/// "transformer-engine" and "transformer-engine-float16": weights, activations and gradients in one 16-bit dtype, and
/// the products of all torch::nn::Linear layers in FP8.
///
/// Weights:  those of TrueDtype in this dtype. There is no loss scale unless the options have one. With
///           Fp8LayerOptions::primary_weights those of the layers are FP8 codes (fp8/fp8_weight.h), which are made of the
///           master weights after each step.
/// Numerics: the other operations run under autocast to the same dtype, so that softmax and losses are float32.
/// Scales, Devices, Errors: those of Fp8Mixed.
/// Source:   Lightning's TransformerEnginePrecision.
class TransformerEngine final : public Fp8Mode<TrueDtype> {
 public:
  /// `dtype`: kBFloat16 or kHalf. `weights`: the options of TrueDtype, without a name.
  /// Errors: c10::ValueError for primary weights without master weights.
  TransformerEngine(at::ScalarType dtype, at::Device device,
                    const Fp8LayerOptions& options = {.first_and_last = true}, TrueDtypeOptions weights = {});

  void convert_module(torch::nn::Module& module) override;

 protected:
  StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure) override;

 private:
  bool stores_weights_;
};

}  // namespace mantissa
