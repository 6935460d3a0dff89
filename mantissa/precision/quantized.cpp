#include "mantissa/precision/quantized.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/core/default_dtype.h"
#include "mantissa/core/device.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/layers_internal.h"
#include "mantissa/precision/true_dtype.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// Throws before any member is constructed.
std::string checked_name(std::string name, const QuantizedPrecisionOptions& options) {
  const auto format = format_of(options.dtype);
  const bool is_known =
      options.dtype == at::kFloat || options.dtype == at::kHalf || options.dtype == at::kBFloat16;
  const auto dtype = is_known ? std::string(info(*format).name) : c10::str(options.dtype);
  TORCH_CHECK_VALUE(options.weights.format != Format::kInt8 || options.dtype == at::kHalf, "precision '",
                    name, "' with dtype ", dtype, ": it only works with float16; leave dtype out");
  TORCH_CHECK_VALUE(is_known, "precision '", name, "' with dtype ", dtype,
                    ": products can be computed in float32, float16 or bfloat16; choose one of them");
  return name;
}

PrecisionTraits traits_of(const QuantizedPrecisionOptions& options) {
  return {.weights = options.weights.format,
          .compute = format_of(options.dtype).value(),
          .scales_loss = options.scaler && options.scaler->is_enabled(),
          .frozen_weights = true,
          .double_quantized = options.weights.compress_statistics,
          .layer_products =
              options.weights.format == Format::kInt8 ? std::optional(Format::kInt8) : std::nullopt};
}

QuantizeModuleOptions with_dtype(QuantizeModuleOptions options, at::ScalarType dtype) {
  options.compute_dtype = dtype;
  return options;
}

/// Whether a weight that is described so belongs to the mode: "nf4-dq, blocks of 64".
bool is_of_mode(const std::string& description, const std::string& mode) {
  return description.substr(0, description.find(',')) == mode;
}

}  // namespace

QuantizedPrecision::QuantizedPrecision(std::string name, at::Device device, QuantizedPrecisionOptions options)
    // Braces, because the options are read before the scaler is moved out of them.
    : ScaledPrecision{checked_name(std::move(name), options), traits_of(options), std::move(options.scaler)},
      device_(device),
      dtype_(options.dtype),
      weights_(with_dtype(std::move(options.weights), options.dtype)) {}

void QuantizedPrecision::convert_module(torch::nn::Module& module) {
  const std::vector<std::string> existing = quantized_formats(module);
  quantize(module, /*zeros=*/false);
  Precision::convert_module(module);
  warn_about_unmatched_names(module, weights_.ignore_modules, "precision '" + name() + "'");
  if (!weights_.ignore_modules.empty() && quantized_formats(module).empty())
    TORCH_WARN("precision '", name(), "': ignore_modules '", join_names(weights_.ignore_modules),
               "' leaves no layer to quantize, so all weights stay in float; name fewer layers, or choose "
               "another mode");
  for (const std::string& format : existing) {
    if (is_of_mode(format, name())) continue;
    TORCH_WARN("precision '", name(), "': ", module.name(), " has weights in ", format,
               " already, which stay as they are");
  }
}

void QuantizedPrecision::check_anything_trains(const std::vector<at::Tensor>& parameters) const {
  const bool trains = std::any_of(parameters.begin(), parameters.end(),
                                  [](const at::Tensor& parameter) { return parameter.requires_grad(); });
  // Plain weights that are frozen may train later, and packed ones never do.
  TORCH_CHECK_VALUE(
      trains || std::none_of(parameters.begin(), parameters.end(), is_packed), "setup_optimizer: precision '",
      name(),
      "' freezes the weights that it quantizes, and the optimizer has no other parameter to train; "
      "make the optimizer after LoRA adapters were added, name layers to train in ignore_modules, or "
      "choose another mode");
}

void QuantizedPrecision::setup_optimizer(torch::optim::Optimizer& optimizer) {
  const std::vector<at::Tensor> parameters = main_params(optimizer);
  check_anything_trains(parameters);
  ScaledPrecision::setup_optimizer(optimizer);
  if (!has_line_search(optimizer)) return;
  for (const at::Tensor& parameter : parameters)
    TORCH_CHECK_TYPE(!is_packed(parameter), name(), ": LBFGS steps all of its parameters together, and '",
                     parameter_name(parameter),
                     "' is quantized; give it the parameters that require a gradient");
}

Scope QuantizedPrecision::tensor_init_context() const { return std::make_shared<DefaultDtypeGuard>(dtype_); }

void QuantizedPrecision::convert_initialized(torch::nn::Module& module, bool is_empty) const {
  TORCH_CHECK(weights_.ignore_modules.empty(), "init_module: precision '", name(), "' with ignore_modules '",
              join_names(weights_.ignore_modules),
              "': init_module() may make a part of a model, whose layers have other names; make the whole "
              "model, and call convert_module()");
  if (!has_layers_to_quantize(module, weights_)) return;  // such as a part that is only an embedding
  quantize(module, /*zeros=*/is_empty);
}

void QuantizedPrecision::convert_empty(torch::nn::Module& module) {
  quantize(module, /*zeros=*/true);
  Precision::convert_module(module);
}

void QuantizedPrecision::quantize(torch::nn::Module& module, bool zeros) const {
  QuantizeModuleOptions options = weights_;
  options.zeros = zeros;
  quantize_module(module, options, "precision '" + name() + "'");
}

Scope QuantizedPrecision::forward_context() const {
  struct Scopes {
    Scopes(at::Device device, at::ScalarType dtype) : default_dtype(dtype) {
      if (dtype != at::kFloat) autocast.emplace(device.type(), AutocastOptions{.dtype = dtype});
    }
    DefaultDtypeGuard default_dtype;
    std::optional<Autocast> autocast;
  };
  return std::make_shared<Scopes>(device_, dtype_);
}

at::Tensor QuantizedPrecision::convert_input(const at::Tensor& x) const {
  return x.is_floating_point() ? x.to(dtype_) : x;
}

at::Tensor QuantizedPrecision::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

at::ScalarType default_quantized_dtype(Format weights, at::Device device) {
  if (weights == Format::kInt8) return at::kHalf;
  const bool has_bfloat16 = format_support(device, Format::kBFloat16).support != FormatSupport::kUnavailable;
  return has_bfloat16 ? at::kBFloat16 : at::kHalf;
}

}  // namespace mantissa
