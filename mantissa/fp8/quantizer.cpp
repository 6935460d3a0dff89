#include <algorithm>
#include <cmath>
#include <type_traits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <c10/util/Exception.h>
#include <c10/util/overloaded.h>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/fp8_weight_internal.h"
#include "mantissa/fp8/hadamard.h"
#include "mantissa/fp8/quantizer_internal.h"
#include "mantissa/fp8/restore_internal.h"
#include "mantissa/fp8/scaled_mm_internal.h"
#include "mantissa/kernels/aten/gemm.h"
#include "mantissa/kernels/aten/tensor_content.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// The restored values of a factor in its codes' order, to be multiplied by `scale_inv`.
struct RestoredFactor {
  at::Tensor values;
  double scale_inv;
};

/// Returns no values if bfloat16 lacks one of them.
RestoredFactor restored(const Fp8Factor& factor, at::ScalarType dtype) {
  return std::visit(
      [&](const auto& quantized) -> RestoredFactor {
        constexpr bool kIsFp4 = std::is_same_v<decltype(quantized), const QuantizedNVFP4&>;
        at::DimVector sizes(quantized.codes.sizes().begin(), quantized.codes.sizes().end());
        if (kIsFp4) sizes.back() *= 2;
        const at::Tensor values = at::empty(sizes, quantized.codes.options().dtype(dtype));
        return {fp8::restore(quantized, values) ? values : at::Tensor(), fp8::scale_inv_of(quantized)};
      },
      factor.quantized);
}

/// Both factors in bfloat16, which has all their values, or else in float32.
std::pair<RestoredFactor, RestoredFactor> restored(const Fp8Factor& a, const Fp8Factor& b) {
  const RestoredFactor left = restored(a, at::kBFloat16);
  if (left.values.defined()) {
    const RestoredFactor right = restored(b, at::kBFloat16);
    if (right.values.defined()) return {left, right};
  }
  return {restored(a, at::kFloat), restored(b, at::kFloat)};
}

/// The matrix [rows, length] of a factor.
kernels::ConstMatrix matrix_of(const Fp8Factor& factor, const at::Tensor& values) {
  const int64_t stride = values.size(1);
  return {values.const_data_ptr(), fp8::element_of(values.scalar_type()), factor.is_transposed ? 1 : stride,
          factor.is_transposed ? stride : 1};
}

/// Multiplies sums by both scales, whose product is too large or too small for float32, where the product with a sum need
/// not be. The larger one comes first, so that no digit is lost on the way.
void scale_apart(const at::Tensor& sums, double one, double other) {
  sums.mul_(std::max(one, other)).mul_(std::min(one, other));
}

/// Fills the last block of each dimension with zeros.
at::Tensor padded(const at::Tensor& matrix, int64_t block_rows, int64_t block_cols) {
  const auto missing = [](int64_t size, int64_t block) { return (block - size % block) % block; };
  const int64_t rows = missing(matrix.size(0), block_rows), cols = missing(matrix.size(1), block_cols);
  return rows == 0 && cols == 0 ? matrix : at::constant_pad_nd(matrix, {0, cols, 0, rows});
}

kernels::TensorContent content_of(const at::Tensor& weight) {
  return kernels::content_of(weight.detach().resolve_neg().contiguous());
}

Fp8Pass pass_of(Fp8Role role) { return role == Fp8Role::kGradient ? Fp8Pass::kBackward : Fp8Pass::kForward; }

}  // namespace

Fp8Factor transposed(Fp8Factor factor) {
  std::swap(factor.rows, factor.length);
  factor.is_transposed = !factor.is_transposed;
  return factor;
}

const at::Tensor& fp8::codes_of(const Fp8Factor& factor) {
  return std::visit([](const auto& quantized) -> const at::Tensor& { return quantized.codes; },
                    factor.quantized);
}

at::Tensor product(const Fp8Factor& a, const Fp8Factor& b, const at::Tensor& bias, at::ScalarType dtype,
                   Fp8Product how) {
  if (!fp8::uses_cpu_kernels(fp8::codes_of(a))) {
    const bool is_empty = a.rows == 0 || b.rows == 0 || a.length == 0;
    if (how != Fp8Product::kEmulated && !is_empty && fp8::has_scaled_mm(a, b))
      return fp8::scaled_mm(a, b, bias, dtype, how == Fp8Product::kNativeFast);
    return fp8::operators::product(a, b, bias, dtype);
  }
  const auto [left, right] = restored(a, b);
  const auto scale_inv = static_cast<float>(left.scale_inv * right.scale_inv);
  const bool is_scaled_apart = !std::isnormal(scale_inv);
  at::Tensor out = at::empty({a.rows, b.rows}, at::TensorOptions(is_scaled_apart ? at::kFloat : dtype));
  // The padding of the length stays: both factors have it, and the Hadamard transform has spread values into it.
  const int64_t length = left.values.size(a.is_transposed ? 0 : 1);
  if (out.numel() == 0) return out.to(dtype);
  if (length == 0) return (bias.defined() ? out.copy_(bias.expand_as(out)) : out.zero_()).to(dtype);
  kernels::Gemm g = {.m = a.rows, .n = b.rows, .k = length};
  g.a = matrix_of(a, left.values);
  g.b = matrix_of(b, right.values);
  std::swap(g.b.row_stride, g.b.col_stride);
  g.out = {out.mutable_data_ptr(), fp8::element_of(out.scalar_type()), b.rows, 1};
  if (!is_scaled_apart) {
    g.alpha = scale_inv;
    if (bias.defined()) g.addend = {bias.const_data_ptr(), fp8::element_of(bias.scalar_type()), 0, 1};
  }
  kernels::aten::matmul::gemm(g);
  if (!is_scaled_apart) return out;
  scale_apart(out, left.scale_inv, right.scale_inv);
  if (bias.defined()) out.add_(bias);
  return out.to(dtype);
}

Fp8Factor Fp8Quantizer::quantize(const at::Tensor& matrix, Fp8Role role) {
  state_.to(matrix.device());
  const bool is_weight = role == Fp8Role::kWeight;
  using Quantized = decltype(Fp8Factor::quantized);
  const auto quantized = c10::overloaded(
      [&](const DelayedScaling& recipe) -> Quantized {
        DelayedScalingState& scales = role == Fp8Role::kGradient ? state_.backward : state_.forward;
        const at::ScalarType dtype = fp8_dtype(recipe.fp8_format, pass_of(role));
        const int64_t tensor = is_weight ? 1 : 0;
        const bool is_current = current_scales_[static_cast<size_t>(role)];
        if (!records_amaxes_ && !is_current) return quantize_fp8(matrix, dtype, scales.scale[tensor]);
        QuantizedFp8 quantized;
        if (records_amaxes_) quantized = quantize_fp8_delayed(matrix, dtype, scales, tensor);
        return is_current ? quantize_fp8_current(matrix, dtype) : quantized;
      },
      [&](const Float8CurrentScaling& recipe) -> Quantized {
        return quantize_fp8_current(matrix, fp8_dtype(recipe.fp8_format, pass_of(role)), recipe.scale);
      },
      [&](const Float8BlockScaling& recipe) -> Quantized {
        const at::ScalarType dtype = fp8_dtype(recipe.fp8_format, pass_of(role));
        return is_weight ? quantize_fp8_blocks(padded(matrix, 128, 128), dtype, Fp8Block::k128x128, recipe)
                         : quantize_fp8_blocks(padded(matrix, 1, 128), dtype, Fp8Block::k1x128, recipe);
      },
      [&](const MXFP8BlockScaling& recipe) -> Quantized {
        const bool is_square = is_weight && recipe.enable_2d_quantization;
        return quantize_mxfp8(padded(matrix, is_square ? 32 : 1, 32),
                              fp8_dtype(recipe.fp8_format, pass_of(role)), is_square);
      },
      [&](const NVFP4BlockScaling& recipe) -> Quantized {
        const bool is_square = is_weight && recipe.enable_2d_quantization;
        return quantize_fp4(padded(matrix, is_square ? 16 : 1, 16), role, {.two_dimensional = is_square});
      });
  return {std::visit(quantized, state_.recipe_), matrix.size(0), matrix.size(1)};
}

Fp8Factor Fp8Quantizer::quantize_columns(const at::Tensor& matrix, Fp8Role role, bool is_for_weight) {
  using Quantized = decltype(Fp8Factor::quantized);
  const auto quantized = c10::overloaded(
      [&](const Float8BlockScaling& recipe) -> Quantized {
        return quantize_fp8_blocks(padded(matrix, 128, 1), fp8_dtype(recipe.fp8_format, pass_of(role)),
                                   Fp8Block::k128x1, recipe);
      },
      [&](const MXFP8BlockScaling& recipe) -> Quantized {
        return quantize_mxfp8_columns(padded(matrix, 32, 1), fp8_dtype(recipe.fp8_format, pass_of(role)));
      },
      [&](const NVFP4BlockScaling& recipe) -> Quantized {
        at::Tensor blocks = padded(matrix, 16, 16);
        if (is_for_weight && recipe.random_hadamard_transform) blocks = hadamard_transform_columns(blocks);
        return quantize_fp4(blocks, role, {.by_columns = true});
      },
      [](const auto&) -> Quantized { TORCH_INTERNAL_ASSERT(false, "one scale serves both directions"); });
  return {std::visit(quantized, state_.recipe_), matrix.size(1), matrix.size(0), /*is_transposed=*/true};
}

decltype(Fp8Factor::quantized) Fp8Quantizer::quantize_fp4(const at::Tensor& blocks, Fp8Role role,
                                                          QuantizeNVFP4Options options) {
  if (role == Fp8Role::kGradient && std::get<NVFP4BlockScaling>(state_.recipe_).stochastic_rounding)
    options.stochastic_rounding = NVFP4Draws{.seed = state_.seed_, .stream = state_.stream_++};
  return quantize_nvfp4(blocks, options);
}

bool Fp8Quantizer::is_same_transposed(Fp8Role role) const {
  const bool is_weight = role == Fp8Role::kWeight;
  return std::visit(
      c10::overloaded([](const DelayedScaling&) { return true; },
                      [](const Float8CurrentScaling&) { return true; },
                      [&](const Float8BlockScaling&) { return is_weight; },
                      [&](const auto& recipe) { return is_weight && recipe.enable_2d_quantization; }),
      state_.recipe_);
}

Fp8Factor Fp8Quantizer::quantize_transposed(const at::Tensor& matrix, const Fp8Factor& factor, Fp8Role role,
                                            bool is_for_weight) {
  return is_same_transposed(role) || is_packed(matrix) ? transposed(factor)
                                                       : quantize_columns(matrix, role, is_for_weight);
}

Fp8Factor Fp8Quantizer::weight_factor_on_device(const at::Tensor& weight, Fp8WeightCodes codes) {
  const bool records = records_amaxes_;
  records_amaxes_ = records && codes != Fp8WeightCodes::kUseKept;
  Fp8Factor factor = quantize(weight, Fp8Role::kWeight);
  records_amaxes_ = records;
  return factor;
}

Fp8Factor Fp8Quantizer::stored_weight_factor(const at::Tensor& weight, Fp8WeightCodes codes) {
  const at::Tensor& amax = fp8_weight_data(weight)->codes().amax;
  state_.to(weight.device());
  if (records_amaxes_ && codes != Fp8WeightCodes::kUseKept && amax.defined() &&
      state_.forward.scale.defined()) {
    const at::Tensor largest = state_.forward.amax_history[0][1];
    largest.copy_(at::maximum(largest, amax));
  }
  return stored_factor(weight);
}

Fp8Factor Fp8Quantizer::weight_factor(const at::Tensor& weight, Fp8WeightCodes codes) {
  using Codes = Fp8WeightCodes;
  if (is_packed(weight)) return stored_weight_factor(weight, codes);
  using Cache = Fp8LinearState::WeightCache;
  std::unique_ptr<Cache>& cache = state_.cache_;
  if (codes == Codes::kMake) return quantize(weight, Fp8Role::kWeight);
  if (!fp8::uses_cpu_kernels(weight)) return weight_factor_on_device(weight, codes);
  TORCH_CHECK(
      cache || codes != Codes::kUseKept,
      "linear_fp8: is_first_microbatch is false, but no call with true has kept the weight's codes; pass "
      "true for the first micro-batch of a step");
  const kernels::TensorContent content = content_of(weight);
  const bool is_same = cache && cache->content == content;
  TORCH_CHECK(is_same || codes != Codes::kUseKept,
              "linear_fp8: is_first_microbatch is false, but the weight has changed since its codes were "
              "kept; pass true for the first micro-batch after a step");
  const bool uses_kept =
      codes == Codes::kUseKept || (codes != Codes::kMakeAndKeep && is_same && cache->is_of_this_step);
  if (uses_kept) return cache->factor;
  Fp8Factor factor = quantize(weight, Fp8Role::kWeight);
  if (codes != Codes::kUseKeptOrMake) cache = std::make_unique<Cache>(Cache{factor, content});
  return factor;
}

}  // namespace mantissa
