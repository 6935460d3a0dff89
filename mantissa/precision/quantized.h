#pragma once

#include <memory>
#include <optional>
#include <string>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/precision/quantize_module.h"
#include "mantissa/precision/scaled.h"

namespace mantissa {

struct QuantizedPrecisionOptions {
  QuantizeModuleOptions weights = {};
  at::ScalarType dtype = at::kBFloat16;          ///< of products: float32, float16 or bfloat16
  std::unique_ptr<GradScaler> scaler = nullptr;  ///< null: the loss is not scaled
};

/// "nf4", "nf4-dq", "fp4", "fp4-dq" and "int8": the weights of torch::nn::Linear layers are kept in 4 or 8 bits
/// and do not train. All other parameters (biases, norms, embeddings, adapters) stay as they were built, and train.
///
/// Weights:  convert_module() quantizes them in place: see quantize_module().
/// Memory:   4.5 bits per weight (4.127 with double quantization), or 8 with int8.
/// Numerics: 4-bit layers compute in `dtype`; int8 layers in 8-bit integers with inputs of `dtype`. Other layers
///           run under autocast to `dtype`, so they may keep float32 weights. Inputs are cast to `dtype`, and
///           outputs to the default dtype.
/// Contexts: forward_context() and module_init_context() make `dtype` the default dtype, so a module that is
///           made in the latter also has its other parameters in it.
/// Threads:  the default dtype is the process's.
/// Errors:   c10::ValueError for another dtype, and for int8 with another one than float16; those of
///           quantize_module(). init_module() with ignore_modules throws c10::Error, because it may make only a
///           part of the model, whose layers do not have their full names yet. setup_optimizer() throws
///           c10::TypeError for LBFGS with a quantized weight among its parameters, and c10::ValueError if none of
///           the optimizer's parameters trains.
/// Source:   Lightning's BitsandbytesPrecision; Dettmers et al. 2022 and 2023, arXiv:2208.07339, 2305.14314.
class QuantizedPrecision final : public ScaledPrecision {
 public:
  QuantizedPrecision(std::string name, at::Device device, QuantizedPrecisionOptions options);

  std::optional<at::DeviceType> device_type() const override { return device_.type(); }
  void convert_module(torch::nn::Module& module) override;
  /// The weights become zeros without being quantized.
  void convert_empty(torch::nn::Module& module) override;
  void setup_optimizer(torch::optim::Optimizer& optimizer) override;
  Scope tensor_init_context() const override;
  void convert_initialized(torch::nn::Module& module, bool is_empty) const override;
  Scope forward_context() const override;
  at::Tensor convert_input(const at::Tensor& x) const override;
  at::Tensor convert_output(const at::Tensor& y) const override;

 private:
  void quantize(torch::nn::Module& module, bool zeros) const;
  void check_anything_trains(const std::vector<at::Tensor>& parameters) const;

  at::Device device_;
  at::ScalarType dtype_;
  QuantizeModuleOptions weights_;
};

/// Returns the dtype of products that a quantized mode has on `device` if none is given: float16 for int8,
/// otherwise bfloat16 if the device has it, and float16 if not.
at::ScalarType default_quantized_dtype(Format weights, at::Device device);

}  // namespace mantissa
