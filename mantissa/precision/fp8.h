#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "mantissa/precision/fp8_layers.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa {

/// "fp8-mixed": the three products of torch::nn::Linear layers are computed in FP8, all other operations under autocast to
/// bfloat16. All weights stay as they were built, usually in float32.
///
/// Weights:  see Fp8Layers: optimizers, files and checkpoints see ordinary weights.
/// Numerics: a layer computes as linear_fp8(): inputs and results are bfloat16, and sums are float32.
/// Scales:   move on once per optimizer step, for all layers. Transformer Engine moves them with each forward and backward
///           pass; both agree where a step has one micro-batch.
/// Memory:   that of bf16-mixed. A layer keeps the codes of its input for backward, and those of its weight: 1 byte per
///           value.
/// Devices:  the CPU, which multiplies the codes in float32.
/// Errors:   those of Fp8Layers::check(), from convert_module() and before anything changes.
///           c10::NotImplementedError for another device.
/// Source:   Micikevicius et al. 2022, arXiv:2209.05433; Transformer Engine.
class Fp8Mixed final : public Precision {
 public:
  explicit Fp8Mixed(at::Device device, Fp8LayerOptions options = {});

  Fp8Layers& fp8_layers() { return layers_; }

  std::optional<at::DeviceType> device_type() const override { return device_.type(); }
  std::vector<LayerReport> layer_report() const override { return layers_.report(); }
  void convert_module(torch::nn::Module& module) override;
  Scope forward_context() const override;
  at::Tensor convert_output(const at::Tensor& y) const override;
  StateDict state_dict() const override;
  std::vector<std::string> load_state_dict(const StateReader& state) override;

 protected:
  StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure) override;

 private:
  at::Device device_;
  Fp8Layers layers_;
};

/// "transformer-engine" and "transformer-engine-float16": weights, activations and gradients in one 16-bit dtype, and
/// the products of all torch::nn::Linear layers in FP8.
///
/// Weights:  those of TrueDtype in this dtype. There is no loss scale unless the options have one.
/// Numerics: the other operations run under autocast to the same dtype, so that softmax and losses are float32.
/// Scales, Devices, Errors: those of Fp8Mixed.
/// Source:   Lightning's TransformerEnginePrecision.
class TransformerEngine final : public TrueDtype {
 public:
  /// `dtype`: kBFloat16 or kHalf. `weights`: the options of TrueDtype, without a name.
  TransformerEngine(at::ScalarType dtype, at::Device device,
                    Fp8LayerOptions options = {.first_and_last = true}, TrueDtypeOptions weights = {});

  Fp8Layers& fp8_layers() { return layers_; }

  std::optional<at::DeviceType> device_type() const override { return device_.type(); }
  std::vector<LayerReport> layer_report() const override { return layers_.report(); }
  void convert_module(torch::nn::Module& module) override;
  Scope forward_context() const override;
  StateDict state_dict() const override;
  std::vector<std::string> load_state_dict(const StateReader& state) override;

 protected:
  StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure) override;

 private:
  at::ScalarType dtype_;
  at::Device device_;
  Fp8Layers layers_;
};

}  // namespace mantissa
