#include "mantissa/quant/int8_training.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "mantissa/kernels/aten/tensor_content.h"
#include "mantissa/quant/linear_int8.h"

namespace mantissa {
namespace {

bool are_finite(const at::Tensor& scales) {
  const float* const values = scales.const_data_ptr<float>();
  return std::all_of(values, values + scales.numel(), [](float scale) { return std::isfinite(scale); });
}

/// Returns what quantize_int8() does, without reading a tensor on the host as ATen's operations would. On another
/// device than the CPU, the codes of a weight that is not finite are returned, and the loss shows it.
QuantizedInt8 quantize_trained(const at::Tensor& weight, const std::string& name) {
  const at::ScalarType dtype = weight.scalar_type();
  const bool is_known = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  if (!is_known) return quantize_int8(weight, name);  // throws
  QuantizedInt8 codes = int8_vectorwise_quant(weight.to(at::kHalf));
  return weight.is_cpu() && !are_finite(codes.scales) ? quantize_int8(weight, name) : codes;
}

}  // namespace

Int8TrainingRule::Int8TrainingRule(double threshold, std::string name)
    : threshold_(threshold), name_(std::move(name)) {
  TORCH_CHECK_VALUE(threshold >= 0, "int8 training: the threshold is ", threshold,
                    "; give a positive one, or 0 for none");
}

WeightRulePtr Int8TrainingRule::for_copy() const {
  return std::make_shared<Int8TrainingRule>(threshold_, name_);
}

int64_t Int8TrainingRule::quantizations() const {
  const std::lock_guard lock(mutex_);
  return quantizations_;
}

std::optional<kernels::TensorContent> Int8TrainingRule::source_of(const at::Tensor& weight) {
  if (!weight.is_cpu() || !weight.is_contiguous() || weight.numel() == 0) return std::nullopt;
  return kernels::content_of(weight);
}

QuantizedInt8 Int8TrainingRule::codes_of(const at::Tensor& weight) const {
  const c10::InferenceMode no_inference(false);  // the codes may serve a later product that records a graph
  const std::optional<kernels::TensorContent> source = source_of(weight);
  {
    const std::lock_guard lock(mutex_);
    if (source && source_ == source) return codes_;
  }
  QuantizedInt8 codes = quantize_trained(weight, name_);
  const std::lock_guard lock(mutex_);
  ++quantizations_;
  if (source) {
    source_ = source;
    codes_ = codes;
  }
  return codes;
}

at::Tensor Int8TrainingRule::linear(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& bias) const {
  return linear_int8_training(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, threshold_,
                              codes_of(weight.detach()));
}

}  // namespace mantissa
