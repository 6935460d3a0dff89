#include "mantissa/precision/int8_training.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/quantize_module.h"
#include "mantissa/precision/true_dtype.h"
#include "mantissa/quant/int8_training.h"
#include "mantissa/quant/quantized_int8.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// A weight that is to be marked.
struct TrainedLayer {
  std::string name;  ///< of the weight, with dots
  at::Tensor weight;
};

bool begins_with_any(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

/// Returns the layers to be marked, each weight once. A weight that an ignored layer shares is left out.
/// Errors: c10::TypeError if the module has no layer at all.
std::vector<TrainedLayer> trained_layers(torch::nn::Module& module,
                                         const std::vector<std::string>& ignore_modules) {
  std::vector<TrainedLayer> layers;
  std::unordered_set<const at::TensorImpl*> seen, ignored;
  bool has_linear = false;
  int64_t packed = 0;
  const auto visit = [&](const std::string& name, torch::nn::Module& part) {
    const auto* const linear = part.as<torch::nn::Linear>();
    if (!linear) return;
    has_linear = true;
    const at::Tensor& weight = linear->weight;
    if (!weight.defined()) return;
    if (is_packed(weight)) {  // it is frozen and has its own arithmetic
      ++packed;
      return;
    }
    if (begins_with_any(name, ignore_modules)) {
      ignored.insert(weight.unsafeGetTensorImpl());
    } else if (seen.insert(weight.unsafeGetTensorImpl()).second) {
      layers.push_back({name.empty() ? "weight" : name + ".weight", weight});
    }
  };
  visit("", module);  // named_modules(include_self) would require a shared_ptr to it
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    visit(item.key(), *item.value());
  TORCH_CHECK_TYPE(
      has_linear, "precision 'int8-training': ", module.name(),
      " has no torch::nn::Linear whose products could be computed in 8 bits; choose another mode");
  if (packed > 0)
    TORCH_WARN(
        "precision 'int8-training': ", packed, " linear layers of ", module.name(),
        " have frozen weights (of an adapter, or in 4 or 8 bits), whose products are not computed in 8 bits; "
        "precision 'int8' does that");
  std::erase_if(
      layers, [&](const TrainedLayer& each) { return ignored.contains(each.weight.unsafeGetTensorImpl()); });
  return layers;
}

std::unique_ptr<GradScaler> scaler_or_default(std::unique_ptr<GradScaler> scaler, at::Device device) {
  return scaler ? std::move(scaler) : std::make_unique<GradScaler>(device);
}

PrecisionTraits int8_training_traits(const GradScaler* scaler) {
  return {.compute = Format::kFloat16, .scales_loss = !scaler || scaler->is_enabled()};
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
  const std::vector<TrainedLayer> layers = trained_layers(module, ignore_modules_);
  for (const TrainedLayer& layer : layers) {
    const std::string name = "'" + layer.name + "'";
    TORCH_CHECK_VALUE(layer.weight.is_leaf(), "precision 'int8-training': autograd computed ", name,
                      ", so it would be computed again; name its layer in ignore_modules");
    if (!layer.weight.is_meta()) quantize_int8(layer.weight, name);  // for its errors
  }
  for (const std::string& ignored : unmatched_names(module, ignore_modules_)) {
    TORCH_WARN("precision 'int8-training': ignore_modules '", ignored, "' matches no submodule of ",
               module.name(), did_you_mean(ignored, module.named_modules("", /*include_self=*/false).keys()));
  }
  Precision::convert_module(module);
  for (const TrainedLayer& layer : layers)
    mark_weight(layer.weight, std::make_shared<Int8TrainingRule>(threshold_, "'" + layer.name + "'"));
}

Scope Int8Training::forward_context() const {
  return std::make_shared<Autocast>(device_.type(), AutocastOptions{.dtype = at::kHalf});
}

at::Tensor Int8Training::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

}  // namespace mantissa
