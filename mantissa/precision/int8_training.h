#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/precision/scaled.h"

namespace mantissa {

struct Int8TrainingOptions {
  /// The magnitude from which a column of a layer's input is an outlier, which is computed in float32; 0: none.
  double threshold = 6;
  /// Layers whose dotted name begins with one of these compute as the rest of the model does.
  std::vector<std::string> ignore_modules = {};
  /// Null: a GradScaler with torch's defaults. A disabled one stands for no loss scale.
  std::unique_ptr<GradScaler> scaler = nullptr;
};

/// "int8-training": the products of torch::nn::Linear layers are computed in 8-bit integers, forward and for the
/// gradient of the weight. All weights stay as they were built, usually in float32, and train.
///
/// Weights:  convert_module() marks the weights of the layers (weights/marked_weight.h) and changes no value, so
///           optimizers, files and checkpoints see ordinary weights.
/// Numerics: a layer computes as linear_int8_training(): inputs and results are float16. All other operations run
///           under autocast to float16, and the loss is scaled.
/// Memory:   that of 16-mixed; beyond it, the codes of each weight on the CPU (1 byte per value).
/// Errors:   c10::ValueError for a negative threshold. convert_module() throws c10::TypeError for a module without
///           a torch::nn::Linear; c10::ValueError or c10::TypeError that names the weight if it cannot be
///           quantized: inf, NaN, too large for float16, float64, or computed by autograd. Nothing has changed
///           then.
/// Source:   Lightning's BitsandbytesPrecision; Dettmers et al. 2022, arXiv:2208.07339.
class Int8Training final : public ScaledPrecision {
 public:
  Int8Training(at::Device device, Int8TrainingOptions options);

  std::optional<at::DeviceType> device_type() const override { return device_.type(); }
  void convert_module(torch::nn::Module& module) override;
  Scope forward_context() const override;
  at::Tensor convert_output(const at::Tensor& y) const override;

 private:
  at::Device device_;
  double threshold_;
  std::vector<std::string> ignore_modules_;
};

}  // namespace mantissa
