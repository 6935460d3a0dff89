#include "mantissa/precision/int8_training.h"

#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/layers_internal.h"
#include "mantissa/precision/true_dtype.h"
#include "mantissa/quant/int8_training.h"
#include "mantissa/quant/quantized_int8.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

constexpr const char* kInt8TrainingMode = "precision 'int8-training'";

/// Returns the layers whose weights are to be marked.
/// Errors: c10::TypeError if the module has no layer at all.
std::vector<Layer> trained_layers(const torch::nn::Module& module, const LayerChoice& choice) {
  TORCH_CHECK_TYPE(
      has_layers(module, choice), kInt8TrainingMode, ": ", module.name(),
      " has no torch::nn::Linear whose products could be computed in 8 bits; choose another mode");
  std::vector<Layer> layers = layers_of(module, choice);
  // A packed weight is frozen and has its own arithmetic. An adapter's base is marked like any other weight.
  const size_t packed =
      std::erase_if(layers, [](const Layer& layer) { return is_packed(base_weight(layer.weight)); });
  if (packed > 0)
    TORCH_WARN(
        kInt8TrainingMode, ": ", packed, " linear layers of ", module.name(),
        " have weights in 4 or 8 bits, which are frozen and compute by their own format; precision 'int8' is "
        "the mode for them");
  return layers;
}

std::unique_ptr<GradScaler> scaler_or_default(std::unique_ptr<GradScaler> scaler, at::Device device) {
  return scaler ? std::move(scaler) : std::make_unique<GradScaler>(device);
}

PrecisionTraits int8_training_traits(const GradScaler* scaler) {
  return {.compute = Format::kFloat16,
          .scales_loss = !scaler || scaler->is_enabled(),
          .layer_products = Format::kInt8};
}

}  // namespace

Int8Training::Int8Training(at::Device device, Int8TrainingOptions options)
    // Braces, because the scaler is read before it is moved.
    : ScaledPrecision{"int8-training", int8_training_traits(options.scaler.get()),
                      scaler_or_default(std::move(options.scaler), device)},
      device_(device),
      threshold_(Int8TrainingRule(options.threshold).threshold()),  // checks it
      ignore_modules_(std::move(options.ignore_modules)) {}

void Int8Training::convert_module(torch::nn::Module& module) {
  const std::vector<Layer> layers = trained_layers(module, {.ignore_modules = ignore_modules_});
  for (const Layer& layer : layers) {
    check_is_leaf(layer, kInt8TrainingMode);
    const at::Tensor weight = base_weight(layer.weight);
    if (!weight.is_meta()) quantize_int8(weight, "'" + layer.name + "'");  // for its errors
  }
  warn_about_unmatched_names(module, ignore_modules_, kInt8TrainingMode);
  if (!ignore_modules_.empty() && layers_of(module, {.ignore_modules = ignore_modules_}).empty())
    TORCH_WARN(kInt8TrainingMode, ": ignore_modules '", join_names(ignore_modules_),
               "' leaves no layer whose products would be computed in 8 bits");
  Precision::convert_module(module);
  for (const Layer& layer : layers)
    mark_weight(base_weight(layer.weight),
                std::make_shared<Int8TrainingRule>(threshold_, "'" + layer.name + "'"));
}

Scope Int8Training::forward_context() const {
  return std::make_shared<Autocast>(device_.type(), AutocastOptions{.dtype = at::kHalf});
}

at::Tensor Int8Training::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

}  // namespace mantissa
