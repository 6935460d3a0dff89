#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/overloaded.h>

#include "mantissa/core/formats.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/statistics_internal.h"
#include "mantissa/kernels/aten/gemm.h"
#include "mantissa/kernels/cpu/fp8.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// What a matrix was quantized by, and which of its values have the code 0.
struct Coded {
  at::Tensor scales;   ///< float32 [blocks down, blocks across]: the factor before the cast
  at::Tensor is_zero;  ///< bool [rows, length], with padding
  float limit;         ///< the smallest magnitude, after the factor, that the range cuts off
};

/// Values up to half a step above 448 are rounded to it: its code is even. 57344 and E2M1's 6 are odd.
float limit_of(at::ScalarType dtype) {
  return dtype == at::kFloat8_e5m2 ? 61440.0F : std::nextafter(464.0F, std::numeric_limits<float>::max());
}
constexpr float kLimitOfE2M1 = 7;

at::Tensor is_zero(const at::Tensor& codes) { return codes.view(at::kByte).bitwise_and(0x7f).eq(0); }

/// `codes` [rows, length / 2] has two codes in a byte.
at::Tensor is_zero_in_halves(const at::Tensor& codes) {
  return at::stack({codes.bitwise_and(0x07), codes.bitwise_and(0x70)}, -1).flatten(-2).eq(0);
}

float amax_of(const at::Tensor& matrix) {
  const fp8::Rows rows = fp8::rows_of(matrix, "linear_fp8");
  return kernels::cpu::find_magnitudes({rows.tensor.const_data_ptr(), rows.element, rows.tensor.numel()})
      .largest;
}

/// Returns the largest magnitude of each block of `values`, which is padded to whole blocks.
at::Tensor block_amaxes(const at::Tensor& values, int64_t block_rows, int64_t block_cols) {
  const at::Tensor magnitudes = at::where(values.isnan(), at::scalar_tensor(0, at::kFloat), values.abs());
  return magnitudes.view({values.size(0) / block_rows, block_rows, values.size(1) / block_cols, block_cols})
      .amax({1, 3})
      .contiguous();
}

at::Tensor padded_to(const at::Tensor& values, at::IntArrayRef sizes) {
  return at::constant_pad_nd(values, {0, sizes[1] - values.size(1), 0, sizes[0] - values.size(0)})
      .contiguous();
}

/// Replaces each number of a float32 tensor.
template <class Function>
at::Tensor mapped(at::Tensor numbers, const Function& function) {
  float* const data = numbers.mutable_data_ptr<float>();
  std::transform(data, data + numbers.numel(), data, function);
  return numbers;
}

class Decoder {
 public:
  Decoder(const at::Tensor& matrix, const at::Tensor& values, const Fp8Recipe& recipe, float delayed_scale)
      : matrix_(matrix), values_(values), recipe_(recipe), delayed_scale_(delayed_scale) {}

  Coded operator()(const QuantizedFp8& factor) const {
    const at::ScalarType dtype = factor.codes.scalar_type();
    return {at::scalar_tensor(scale_of(factor), at::kFloat).view({1, 1}), is_zero(factor.codes),
            limit_of(dtype)};
  }

  Coded operator()(const QuantizedFp8Blocks& factor) const {
    const auto& recipe = std::get<Float8BlockScaling>(recipe_);
    const at::ScalarType dtype = factor.codes.scalar_type();
    const int64_t rows = factor.block == Fp8Block::k128x128 ? 128 : 1;
    const Fp8ScaleOptions options = {
        recipe.power_of_two, recipe.epsilon,
        static_cast<float>(info(format_of(matrix_.scalar_type()).value()).largest)};
    return {mapped(block_amaxes(padded_to(values_, factor.codes.sizes()), rows, 128),
                   [&](float amax) { return fp8_scale(amax, fp8_max(dtype), options); }),
            is_zero(factor.codes), limit_of(dtype)};
  }

  Coded operator()(const QuantizedMXFP8& factor) const {
    at::Tensor scales = factor.exponents.view(at::kByte).to(at::kFloat);
    return {mapped(std::move(scales),
                   [](float exponent) { return std::ldexp(1.0F, 127 - static_cast<int>(exponent)); }),
            is_zero(factor.codes), limit_of(factor.codes.scalar_type())};
  }

  Coded operator()(const QuantizedNVFP4& factor) const {
    const float scale = *factor.scale.const_data_ptr<float>(), most = std::numeric_limits<float>::max();
    const auto quotient = [&](float block) { return block == 0 ? 0 : std::min(scale / block, most); };
    const auto factor_of = [&](float block) { return std::isnan(block) ? block : quotient(block); };
    return {mapped(factor.block_scale.to(at::kFloat), factor_of), is_zero_in_halves(factor.codes),
            kLimitOfE2M1};
  }

 private:
  /// The inverse that is kept does not determine the scale's last digit. Kept codes may have the scale of an earlier step.
  float scale_of(const QuantizedFp8& factor) const {
    const float inverse = *factor.scale_inv.const_data_ptr<float>();
    const auto* const current = std::get_if<Float8CurrentScaling>(&recipe_);
    const float found = fp8_scale(amax_of(matrix_), fp8_max(factor.codes.scalar_type()),
                                  current ? current->scale : Fp8ScaleOptions());
    for (const float known : {current ? found : delayed_scale_, found})
      if (1 / known == inverse) return known;
    return 1 / inverse;
  }

  const at::Tensor &matrix_, &values_;
  const Fp8Recipe& recipe_;
  float delayed_scale_;
};

const char* name_of(Fp8Role role) {
  return role == Fp8Role::kInput ? "input" : role == Fp8Role::kWeight ? "weight" : "grad_output";
}

}  // namespace

LayerStatistics Fp8Sample::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void Fp8Sample::add(Fp8Role role, const TensorStatistics& counted) {
  if (counted.numel == 0) return;
  const std::lock_guard lock(mutex_);
  statistics_.tensors[name_of(role)].add(counted);
}

void Fp8Sample::add_error(const char* name, const at::Tensor& product, const at::Tensor& reference,
                          const at::Tensor& bias) {
  if (product.numel() == 0) return;
  const at::Tensor rounded =
      (bias.defined() ? reference + bias.detach() : reference).to(product.scalar_type());
  const at::Tensor distance = product.to(at::kDouble) - rounded.to(at::kDouble);
  const ProductError error = {distance.abs().sum().item<double>(),
                              reference.abs().sum(at::kDouble).item<double>()};
  const std::lock_guard lock(mutex_);
  statistics_.products[name].add(error);
}

at::Tensor reference_product(const at::Tensor& a, const at::Tensor& b) {
  // Not by ATen's operators, because a marked weight would multiply by its rule again.
  const auto in_float32 = [](const at::Tensor& x) { return x.detach().resolve_neg().to(at::kFloat); };
  const at::Tensor left = in_float32(a), right = in_float32(b);
  if (!left.is_cpu()) {
    const at::NoTF32Guard no_tf32;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return at::mm(left * 1, (right * 1).t());  // a product with a number has no mark
  }
  at::Tensor out = at::zeros({left.size(0), right.size(0)}, at::TensorOptions(at::kFloat));
  if (out.numel() == 0 || left.size(1) == 0) return out;
  kernels::Gemm g = {.m = left.size(0), .n = right.size(0), .k = left.size(1)};
  g.a = {left.const_data_ptr(), kernels::Element::kFloat32, left.stride(0), left.stride(1)};
  g.b = {right.const_data_ptr(), kernels::Element::kFloat32, right.stride(1), right.stride(0)};
  g.out = {out.mutable_data_ptr(), kernels::Element::kFloat32, out.size(1), 1};
  kernels::aten::matmul::gemm(g);
  return out;
}

TensorStatistics tensor_statistics(const at::Tensor& matrix, const Fp8Factor& factor, const Fp8Recipe& recipe,
                                   float delayed_scale) {
  TensorStatistics result{.numel = matrix.numel()};
  if (result.numel == 0) return result;
  const at::Tensor values = matrix.detach().resolve_neg().to(at::kFloat).contiguous();
  result.amax = amax_of(matrix);
  const auto [block_scales, codes_are_zero, limit] =
      std::visit(Decoder(matrix, values, recipe, delayed_scale), factor.quantized);
  const auto inside = [&](const at::Tensor& padded) {
    return padded.narrow(0, 0, factor.rows).narrow(1, 0, factor.length);
  };
  const bool is_one = block_scales.numel() == 1 && std::holds_alternative<QuantizedFp8>(factor.quantized);
  const at::Tensor scales =
      is_one ? block_scales.expand_as(values)
             : inside(block_scales.repeat_interleave(codes_are_zero.size(0) / block_scales.size(0), 0)
                          .repeat_interleave(codes_are_zero.size(1) / block_scales.size(1), 1));
  // A comparison with NaN is false, so neither NaN nor a block that NaN has spoiled counts.
  const at::Tensor counts = (values.abs() > 0).logical_and(scales.ge(0));
  result.underflows = inside(codes_are_zero).logical_and(counts).sum().item<int64_t>();
  result.overflows = (values * scales).abs().ge(limit).sum().item<int64_t>();
  const at::Tensor used = is_one ? block_scales : scales.masked_select(counts);
  if (used.numel() == 0) return result;
  result.scale_min = used.min().item<double>();
  result.scale_max = used.max().item<double>();
  return result;
}

void Fp8Quantizer::record(const at::Tensor& matrix, const Fp8Factor& factor, Fp8Role role) const {
  if (!state_.sample_ || !records_amaxes_) return;
  const at::Tensor& scales = role == Fp8Role::kGradient ? state_.backward.scale : state_.forward.scale;
  const float delayed_scale = scales.defined() ? scales[role == Fp8Role::kWeight ? 1 : 0].item<float>() : 1;
  Fp8Factor on_cpu = factor;  // counting reads the memory
  for_each_tensor(on_cpu, [](at::Tensor& each) { each = each.cpu(); });
  state_.sample_->add(role, tensor_statistics(mantissa::dequantize(matrix.detach()).cpu(), on_cpu,
                                              state_.recipe_, delayed_scale));
}

std::shared_ptr<Fp8Sample> Fp8Quantizer::sample_of_errors() const {
  return state_.sample_ && records_amaxes_ && state_.sample_->has_errors() ? state_.sample_ : nullptr;
}

void Fp8LinearState::sample(LayerSampling sampling) {
  const std::lock_guard lock(mutex_);
  sample_ = sampling == LayerSampling::kNone ? nullptr : std::make_shared<Fp8Sample>(sampling);
}

LayerStatistics Fp8LinearState::statistics() const {
  return sample_ ? sample_->statistics() : LayerStatistics();
}

}  // namespace mantissa
