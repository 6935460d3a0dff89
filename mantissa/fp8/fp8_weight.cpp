#include "mantissa/fp8/fp8_weight.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/fp8_weight_internal.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/operators_internal.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/trained_data.h"

namespace mantissa {
namespace {

/// Returns the names of a factor's tensors, in the order of for_each_tensor().
std::vector<std::string> names_of(const Fp8Factor& factor) {
  if (std::holds_alternative<QuantizedMXFP8>(factor.quantized)) return {"", "exponents"};
  return {"", "scale_inv"};
}

at::Tensor one_number(float value, const at::Tensor& like) {
  return at::full({}, value, like.options().dtype(at::kFloat).requires_grad(false));
}

/// Returns the largest magnitude of the values; NaN does not count.
at::Tensor magnitude_of(const at::Tensor& values) {
  at::Tensor amax = one_number(0, values);
  quantize_fp8(values, at::kFloat8_e4m3fn, one_number(1, values), amax);
  return amax;
}

/// Returns the codes that a product of the weight makes.
Fp8Weight::Codes nearest(const at::Tensor& values, Fp8LinearState& state) {
  Fp8Quantizer quantizer(state, /*records_amaxes=*/false, ~state.has_scales());
  const bool is_delayed = std::holds_alternative<DelayedScaling>(state.recipe());
  return {quantizer.quantize(values, Fp8Role::kWeight), is_delayed ? magnitude_of(values) : at::Tensor()};
}

Fp8Weight::Codes stochastic(const at::Tensor& values, Fp8LinearState& state) {
  const at::Tensor amax = magnitude_of(values);
  const at::Tensor scale =
      fp8::operators::scales_of(amax, fp8_max(at::kFloat8_e4m3fn), {.power_of_two = true});
  const at::Tensor rounded =
      fp8::round_stochastically(values.to(at::kFloat) * scale, state.seed(), state.next_stream());
  Fp8Factor factor = {quantize_fp8(rounded, at::kFloat8_e4m3fn, one_number(1, values)), values.size(0),
                      values.size(1)};
  std::get<QuantizedFp8>(factor.quantized).scale_inv = 1 / scale;
  return {std::move(factor), std::holds_alternative<DelayedScaling>(state.recipe()) ? amax : at::Tensor()};
}

std::shared_ptr<const Fp8Weight> data_or_throw(const at::Tensor& weight, const char* function) {
  auto data = fp8_weight_data(weight);
  TORCH_CHECK_TYPE(data, function,
                   ": the tensor is no weight that is stored in FP8; call make_fp8_weight() first");
  return data;
}

/// Returns codes with zeros behind them, as many rows and columns as `sizes`.
at::Tensor with_padding(const at::Tensor& codes, at::IntArrayRef sizes) {
  if (codes.sizes() == sizes) return codes;
  at::Tensor padded = at::zeros(sizes, codes.options().dtype(at::kByte));  // the code of 0 is 0
  padded.narrow(0, 0, codes.size(0)).narrow(1, 0, codes.size(1)).copy_(codes.view(at::kByte));
  return padded.view(codes.scalar_type());
}

/// Returns the part of a factor's values that belongs to the weight.
at::Tensor without_padding(const at::Tensor& values, const Fp8Factor& factor) {
  return values.narrow(0, 0, factor.rows).narrow(1, 0, factor.length);
}

}  // namespace

Fp8Weight::Fp8Weight(Fp8Recipe recipe, Codes codes, std::shared_ptr<InitVal> init_val)
    : recipe_(std::move(recipe)),
      codes_(std::move(codes)),
      init_val_(std::move(init_val)),
      sizes_({codes_.factor.rows, codes_.factor.length}) {}

std::string Fp8Weight::description() const { return c10::str("FP8, ", recipe_name(recipe_)); }

PackedData::Parts Fp8Weight::parts() const {
  Parts parts;
  Fp8Factor factor = codes_.factor;
  const std::vector<std::string> names = names_of(factor);
  size_t next = 0;
  for_each_tensor(factor, [&](const at::Tensor& each) { parts.emplace(names[next++], each); });
  if (codes_.amax.defined()) parts.emplace("amax", codes_.amax);
  return parts;
}

PackedDataPtr Fp8Weight::with_parts(Parts parts) const {
  Codes codes = codes_;
  const std::vector<std::string> names = names_of(codes.factor);
  size_t next = 0;
  for_each_tensor(codes.factor, [&](at::Tensor& each) { each = parts.at(names[next++]); });
  if (codes.amax.defined()) codes.amax = parts.at("amax");
  return std::make_shared<Fp8Weight>(recipe_, std::move(codes), init_val_);
}

PackedData::Parts Fp8Weight::state(const std::string& name) const {
  Parts state = PackedData::state(name);
  at::Tensor& codes = state.at(name);
  codes = without_padding(codes, codes_.factor).contiguous();
  return state;
}

PackedDataPtr Fp8Weight::with_state(const Parts& stored, const std::string& name) const {
  const auto found = stored.find(name);
  if (found == stored.end() || found->second.sizes() != sizes()) return PackedData::with_state(stored, name);
  Parts padded = stored;
  padded.at(name) = with_padding(found->second.contiguous(), parts().at("").sizes());
  return PackedData::with_state(padded, name);
}

PackedDataPtr Fp8Weight::with_values(const at::Tensor& values, const std::string& name) const {
  const at::Tensor plain = values.detach().to(device());
  fp8::check_input(plain, name);
  Fp8LinearState state(recipe_);
  auto init_val = std::make_shared<InitVal>(InitVal{{}, init_val_->preserves});
  if (init_val->preserves) init_val->values = values.detach().to(at::kCPU, values.scalar_type(), false, true);
  return std::make_shared<Fp8Weight>(recipe_, nearest(plain, state), std::move(init_val));
}

at::Tensor Fp8Weight::dequantize(at::ScalarType dtype) const {
  const at::Tensor values =
      std::visit([](const auto& quantized) { return dequantize_fp8(quantized); }, codes_.factor.quantized);
  return without_padding(values, codes_.factor).to(dtype).contiguous();
}

std::shared_ptr<const Fp8Weight> fp8_weight_data(const at::Tensor& weight) {
  return is_packed(weight) ? std::dynamic_pointer_cast<const Fp8Weight>(packed_data(weight)) : nullptr;
}

Fp8Factor stored_factor(const at::Tensor& weight) {
  const Fp8Factor& factor = data_or_throw(weight, "linear_fp8")->codes().factor;
  const bool is_transposed = weight.size(0) != factor.rows || weight.stride(0) != factor.length;
  return is_transposed ? transposed(factor) : factor;
}

bool is_fp8_weight(const at::Tensor& tensor) { return fp8_weight_data(tensor) != nullptr; }

void check_stores_weights(const Fp8Recipe& recipe, Fp8Rounding rounding, const std::string& who) {
  const auto* const mx = std::get_if<MXFP8BlockScaling>(&recipe);
  TORCH_CHECK_VALUE(
      !std::holds_alternative<NVFP4BlockScaling>(recipe), who,
      ": NVFP4BlockScaling has codes of 4 bits, which are too coarse to keep a trained weight in; keep the "
      "weights in high precision, or choose another recipe");
  TORCH_CHECK_VALUE(
      !mx || mx->enable_2d_quantization, who,
      ": MXFP8BlockScaling has other codes for the transposed weight, and neither can be made from the "
      "others; set enable_2d_quantization to store weights in FP8");
  const bool has_one_scale =
      std::holds_alternative<DelayedScaling>(recipe) || std::holds_alternative<Float8CurrentScaling>(recipe);
  TORCH_CHECK_VALUE(
      rounding == Fp8Rounding::kNearest || has_one_scale, who, ": ", recipe_name(recipe),
      " has scales for blocks, and stochastic rounding needs one for the weight; use master weights, or "
      "choose Float8CurrentScaling or DelayedScaling");
}

void make_fp8_weight(const at::Tensor& parameter, const std::shared_ptr<Fp8LinearState>& state,
                     const Fp8WeightOptions& options) {
  TORCH_CHECK_VALUE(parameter.defined() && state, "make_fp8_weight: got no ", state ? "weight" : "state",
                    "; give a weight and an Fp8LinearState");
  TORCH_CHECK_VALUE(!is_packed(parameter), "make_fp8_weight: the weight is packed (",
                    packed_data(parameter)->description(),
                    "); exchange it with mantissa::replace_weight() first");
  TORCH_CHECK_VALUE(parameter.dim() == 2 && parameter.is_leaf(), "make_fp8_weight: the weight has shape ",
                    parameter.sizes(), parameter.is_leaf() ? "" : " and was computed by autograd",
                    "; only matrices that are leaves can be stored in FP8");
  fp8::check_input(parameter, "make_fp8_weight");
  check_stores_weights(state->recipe(), Fp8Rounding::kNearest, "make_fp8_weight");
  const at::NoGradGuard no_grad;
  const at::Tensor values = parameter.detach().contiguous();
  auto init_val = std::make_shared<Fp8Weight::InitVal>();
  init_val->preserves = options.preserve_high_precision_init_val;
  if (init_val->preserves) init_val->values = values.to(at::kCPU, values.scalar_type(), false, /*copy=*/true);
  const at::Tensor made = make_packed_weight(
      std::make_shared<Fp8Weight>(state->recipe(), nearest(values, *state), std::move(init_val)),
      parameter.scalar_type());
  mark_weight(made, std::make_shared<Fp8TrainingRule>(state));
  const bool trains = parameter.requires_grad();
  parameter.mutable_grad() = at::Tensor();
  parameter.set_data(made);
  parameter.set_requires_grad(trains);
}

void store_fp8_weight(const at::Tensor& weight, const at::Tensor& values, Fp8Rounding rounding) {
  const auto own = data_or_throw(weight, "store_fp8_weight");
  const std::shared_ptr<Fp8LinearState> state = fp8_state_of(weight);
  TORCH_CHECK_TYPE(state, "store_fp8_weight: the weight has no Fp8TrainingRule; mark it again");
  TORCH_CHECK_VALUE(values.defined() && values.sizes() == own->sizes() && values.device() == own->device(),
                    "store_fp8_weight: the weight has shape ", own->sizes(), " on ", own->device(),
                    "; give values of that shape and device");
  fp8::check_input(values, "store_fp8_weight");
  check_stores_weights(state->recipe(), rounding, "store_fp8_weight");
  const at::NoGradGuard no_grad;
  const at::Tensor plain = values.detach().contiguous();
  Fp8Weight::Codes codes =
      rounding == Fp8Rounding::kNearest ? nearest(plain, *state) : stochastic(plain, *state);
  replace_trained_data(weight,
                       std::make_shared<Fp8Weight>(state->recipe(), std::move(codes), own->init_val()));
}

at::Tensor high_precision_init_val(const at::Tensor& weight) {
  return data_or_throw(weight, "high_precision_init_val")->init_val()->values;
}

void clear_high_precision_init_val(const at::Tensor& weight) {
  data_or_throw(weight, "clear_high_precision_init_val")->init_val()->values = at::Tensor();
}

}  // namespace mantissa
