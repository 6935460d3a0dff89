#include <algorithm>
#include <limits>
#include <optional>
#include <ostream>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>

#include "mantissa/lora/lora_weight_internal.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::lora {

using at::Tensor;

Factor::Factor(const Tensor& values) : torch::nn::Module("LoraFactor") {
  weight = register_parameter("weight", values);
}

void Factor::to(at::Device device, at::ScalarType /*dtype*/, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

void Factor::to(at::ScalarType /*dtype*/, bool /*non_blocking*/) {}

void Factor::pretty_print(std::ostream& stream) const { stream << name() << weight.sizes(); }

std::shared_ptr<Factor> Factors::add(const std::string& adapter, const Tensor& values) {
  auto factor = register_module(adapter, std::make_shared<Factor>(values));
  factor->train(is_training());
  return factor;
}

std::vector<Tensor> Adapter::parameters() const {
  std::vector<Tensor> all{a->weight, b->weight};
  if (magnitude) all.push_back(magnitude->weight);
  return all;
}

void Adapter::set_requires_grad(bool requires_grad) const {
  for (const Tensor& parameter : parameters()) parameter.set_requires_grad(requires_grad);
}

void Adapter::drop_gradients() const {
  for (const Tensor& parameter : parameters()) parameter.mutable_grad().reset();
}

Tensor values_of(const Tensor& weight, at::ScalarType dtype) {
  return is_packed(weight) ? packed_data(weight)->dequantize(dtype) : weight.to(dtype);
}

Tensor row_lengths(const Tensor& matrix) {
  return at::linalg_vector_norm(matrix, 2, at::IntArrayRef({1}), /*keepdim=*/false, at::kFloat);
}

namespace {

/// The dtype in which values are combined: a row's length is the sum of thousands of squares.
at::ScalarType wide(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Returns scaling * B A in `dtype`.
Tensor product_of(const Adapter& adapter, at::ScalarType dtype) {
  return at::matmul(adapter.b->weight.to(dtype), adapter.a->weight.to(dtype)) * adapter.scaling;
}

/// Returns DoRA's factor of each row, magnitude / length, in float32. The length counts as a constant for
/// gradients (Liu et al. 2024, arXiv:2402.09353, section 4.3).
Tensor row_factors(const Adapter& adapter, const Tensor& base) {
  Tensor lengths;
  {
    const at::NoGradGuard no_grad;
    lengths = row_lengths(values_of(base, at::kFloat) + product_of(adapter, at::kFloat));
  }
  // A row of zeros has the magnitude 0 and stays zero.
  return adapter.magnitude->weight / lengths.clamp_min(std::numeric_limits<float>::min());
}

Tensor dropped(const Adapter& adapter, const Tensor& x) {
  const bool drops = adapter.dropout > 0 && adapter.a->is_training();
  return drops ? at::dropout(x, adapter.dropout, /*train=*/true) : x;
}

}  // namespace

LoraWeight::LoraWeight(const Tensor& base, std::vector<AdapterPtr> adapters)
    : base_(base.detach()), adapters_(std::move(adapters)) {}

std::string LoraWeight::description() const {
  std::string text = "LoRA";
  for (const AdapterPtr& adapter : adapters_) text += " '" + adapter->name + "'";
  return text + " on " +
         (is_packed(base_) ? packed_data(base_)->description() : toString(base_.scalar_type()));
}

PackedData::Parts LoraWeight::parts() const {
  return is_packed(base_) ? packed_data(base_)->parts() : Parts{{"", base_}};
}

PackedDataPtr LoraWeight::with_parts(Parts parts) const {
  if (!is_packed(base_)) return with_base(parts.at(""));
  return with_base(make_packed_weight(packed_data(base_)->with_parts(std::move(parts)), base_.scalar_type()));
}

PackedData::Parts LoraWeight::state(const std::string& name) const {
  return is_packed(base_) ? packed_data(base_)->state(name) : Parts{{name, base_}};
}

PackedDataPtr LoraWeight::with_state(const Parts& stored, const std::string& name) const {
  if (!is_packed(base_)) return PackedData::with_state(stored, name);
  return with_base(make_packed_weight(packed_data(base_)->with_state(stored, name), base_.scalar_type()));
}

PackedDataPtr LoraWeight::with_values(const Tensor& values, const std::string& name) const {
  if (is_packed(base_))
    return with_base(make_packed_weight(packed_data(base_)->with_values(values, name), base_.scalar_type()));
  return with_base(with_rule_of(
      base_, values.detach().to(base_.device(), base_.scalar_type(), /*non_blocking=*/false, /*copy=*/true)));
}

PackedDataPtr LoraWeight::with_base(const Tensor& base) const {
  return std::make_shared<LoraWeight>(base, adapters_);
}

PackedDataPtr LoraWeight::with_dtype(at::ScalarType dtype) const {
  if (dtype == base_.scalar_type()) return nullptr;
  return with_base(with_rule_of(base_, base_.to(dtype)));
}

void LoraWeight::check_clone() const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "clone: a weight (", description(), ") of ", sizes(),
      " cannot be cloned, because its adapters' parameters belong to one module; clone the model before "
      "adapters are added, or after unload() or merge_and_unload()");
}

Tensor LoraWeight::base_for(const Tensor& x) const {
  if (is_packed(base_)) return base_;  // it multiplies inputs of any dtype
  const WeightRulePtr rule = weight_rule(base_);
  return rule && rule->computes(x, base_) ? base_ : base_.to(x.scalar_type());
}

Tensor LoraWeight::dequantize(at::ScalarType dtype) const {
  const Tensor base = values_of(base_, wide(dtype));
  Tensor sum = base;
  for (const AdapterPtr& adapter : adapters_) {
    const Tensor product = product_of(*adapter, wide(dtype));
    if (adapter->magnitude) {
      const Tensor factors = row_factors(*adapter, base_).to(wide(dtype)).unsqueeze(1);
      sum = sum + (factors * (base + product) - base);
    } else {
      sum = sum + product;
    }
  }
  return sum.to(dtype);
}

Tensor LoraWeight::multiply(const Tensor& x, const Tensor& bias) const {
  const at::ScalarType dtype = x.scalar_type();
  const Tensor base = base_for(x);
  const bool has_magnitudes = std::any_of(adapters_.begin(), adapters_.end(),
                                          [](const AdapterPtr& adapter) { return !!adapter->magnitude; });
  // DoRA scales the product and not the bias.
  const bool adds_bias = bias.defined() && has_magnitudes;
  const Tensor plain =
      at::linear(x, base, bias.defined() && !adds_bias ? std::make_optional(bias) : std::nullopt);
  Tensor y = plain;
  for (const AdapterPtr& adapter : adapters_) {
    const Tensor input = dropped(*adapter, x);
    const Tensor product =
        at::linear(at::linear(input, adapter->a->weight.to(dtype)), adapter->b->weight.to(dtype));
    if (!adapter->magnitude) {
      y = at::add(y, product, adapter->scaling);
      continue;
    }
    const Tensor factors = row_factors(*adapter, base_);
    const Tensor kept = input.is_same(x) ? plain : at::linear(input, base);
    y = y + kept * (factors - 1).to(dtype) + product * (factors * adapter->scaling).to(dtype);
  }
  return adds_bias ? y + bias : y;
}

Tensor LoraWeight::multiply_transposed(const Tensor& x) const {
  const at::ScalarType dtype = x.scalar_type();
  const Tensor base = base_for(x);
  Tensor y = at::matmul(x, base);
  for (const AdapterPtr& adapter : adapters_) {
    const Tensor a = adapter->a->weight.to(dtype), b = adapter->b->weight.to(dtype);
    if (!adapter->magnitude) {
      y = at::add(y, at::matmul(at::matmul(x, b), a), adapter->scaling);
      continue;
    }
    const Tensor factors = row_factors(*adapter, base_);
    y = y + at::matmul(x * (factors - 1).to(dtype), base) +
        at::matmul(at::matmul(x * (factors * adapter->scaling).to(dtype), b), a);
  }
  return y;
}

}  // namespace mantissa::lora
