#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

#include "mantissa/lora/state_internal.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa {
namespace {

using lora::Layer;

/// A layer's merged weight, and what rounding cost it.
struct Merged {
  at::Tensor weight;
  MergedLayer report;
};

void check_finite(const at::Tensor& values, const std::string& name, const char* what) {
  TORCH_CHECK_VALUE(at::isfinite(values).all().item<bool>(), "merge_adapter: the merged weight of '", name,
                    "' ", what, "; no layer has been merged: train again from an earlier checkpoint");
}

/// Returns `values` in the packed format of `base`.
/// Errors: c10::ValueError that begins with `function` and ends with `cure`.
at::Tensor in_format_of(const at::Tensor& base, const at::Tensor& values, const std::string& name,
                        const char* function, const char* cure) {
  try {
    return make_packed_weight(packed_data(base)->with_values(values, name), base.scalar_type());
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, function, ": '", name, "' cannot be quantized again (",
                      error.what_without_backtrace(), "); ", cure);
  }
}

/// Returns the merged weight of a layer: `exact` in the format or dtype of `base`.
at::Tensor merged_weight(const at::Tensor& base, const at::Tensor& exact, bool dequantize,
                         const std::string& name) {
  if (!is_packed(base)) return with_rule_of(base, exact.to(base.scalar_type()));
  if (dequantize) return exact.to(base.scalar_type());
  return in_format_of(base, exact, name, "merge_adapter", "merge with dequantize = true");
}

/// Returns the weight that a merged layer gets back. The model may have been moved, cast or quantized meanwhile, and
/// another mode may have given it another rule or none: replace_weight() keeps the rule of the weight that it replaces.
at::Tensor restored_weight(const Layer& layer) {
  const at::Tensor& weight = layer.module->weight;
  at::Tensor before = layer.unmerged.to(weight.device(), weight.scalar_type());
  unmark_weight(before);
  if (!is_packed(weight) || is_packed(before)) return before;
  return in_format_of(weight, before, layer.name, "unmerge_adapter",
                      "no layer has changed: give it a plain weight with replace_weight() first");
}

Merged merge(const Layer& layer, bool dequantize) {
  const at::Tensor& weight = layer.module->weight;
  const at::Tensor exact = packed_data(weight)->dequantize(at::kFloat);
  check_finite(exact, layer.name, "is not finite");
  Merged merged{merged_weight(base_weight(weight), exact, dequantize, layer.name), {layer.name}};
  const at::Tensor values = lora::values_of(merged.weight, at::kFloat);
  check_finite(values, layer.name, "overflows its dtype");
  const at::Tensor error = values - exact;
  if (error.numel() == 0) return merged;
  merged.report.max_error = error.abs().max().item<double>();
  const auto squares = [](const at::Tensor& x) { return x.to(at::kDouble).square().sum().item<double>(); };
  const double all = squares(exact);
  const double lost = squares(error);
  if (all > 0) merged.report.relative_error = std::sqrt(lost / all);
  if (lost == 0) return merged;
  const double change = squares(exact - lora::values_of(base_weight(weight), at::kFloat));
  if (change > 0) merged.report.error_over_change = std::sqrt(lost / change);
  return merged;
}

}  // namespace

std::vector<MergedLayer> LoraModel::merge_adapter(bool dequantize) {
  State& state = *state_;
  state.check_not_merged("merge_adapter");
  TORCH_CHECK_VALUE(state.enabled && !state.active.empty(),
                    "merge_adapter: no adapter is active; call enable_adapters() or set_adapter() first");
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Layer*, at::Tensor>> merged;
  std::vector<MergedLayer> reports;
  for (Layer& layer : state.layers) {
    if (!is_adapted(layer.module->weight)) continue;  // no active adapter
    Merged each = merge(layer, dequantize);
    merged.emplace_back(&layer, std::move(each.weight));
    reports.push_back(std::move(each.report));
  }
  for (auto& [layer, weight] : merged) {
    layer->unmerged = base_weight(layer->module->weight);
    replace_weight(layer->module->weight, weight);
  }
  state.merged = true;
  return reports;
}

void LoraModel::unmerge_adapter() {
  TORCH_CHECK_VALUE(state_->merged,
                    "unmerge_adapter: the adapters are not merged; call merge_adapter() first");
  std::vector<std::pair<Layer*, at::Tensor>> restored;
  for (Layer& layer : state_->layers)
    if (layer.unmerged.defined()) restored.emplace_back(&layer, restored_weight(layer));
  for (auto& [layer, weight] : restored) {
    replace_weight(layer->module->weight, weight);
    layer->unmerged.reset();
  }
  state_->merged = false;
  state_->apply();
}

std::vector<MergedLayer> LoraModel::merge_and_unload(bool dequantize) {
  std::vector<MergedLayer> reports = merge_adapter(dequantize);
  state_->forget_all();
  return reports;
}

void LoraModel::unload() {
  if (state_->merged) unmerge_adapter();
  state_->active.clear();
  state_->apply();
  state_->forget_all();
}

}  // namespace mantissa
