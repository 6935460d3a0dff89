#include <algorithm>
#include <cmath>
#include <type_traits>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/overloaded.h>

#include "mantissa/fp8/hadamard.h"
#include "mantissa/fp8/quantizer_internal.h"
#include "mantissa/kernels/aten/tensor_content.h"

namespace mantissa {
namespace {

/// Values in float32, still to be multiplied by `scale_inv`.
struct DecodedFactor {
  at::Tensor values;
  float scale_inv;
};

/// The scale of a whole tensor multiplies the sums: the factors are exact then.
DecodedFactor decoded(const Fp8Factor& factor) {
  const auto [stored, scale_inv] = std::visit(
      [](const auto& quantized) -> DecodedFactor {
        if constexpr (std::is_same_v<decltype(quantized), const QuantizedFp8&>) {
          const at::Tensor one = at::scalar_tensor(1, at::kFloat);
          return {dequantize_fp8(QuantizedFp8{quantized.codes, one}),
                  *quantized.scale_inv.template const_data_ptr<float>()};
        } else {
          return {dequantize_fp8(quantized), 1};
        }
      },
      factor.quantized);
  const at::Tensor values = factor.is_transposed ? stored.t() : stored;
  // The padding of the length stays: both factors have it, and the Hadamard transform has spread values into it.
  return {values.narrow(0, 0, factor.rows), scale_inv};
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

at::Tensor product(const Fp8Factor& a, const Fp8Factor& b) {
  // The codes are multiplied in float32, also where autocast would multiply in 16 bits.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const DecodedFactor left = decoded(a), right = decoded(b);
  at::Tensor sums = at::matmul(left.values, right.values.t());
  const float scale_inv = left.scale_inv * right.scale_inv;
  if (std::isnormal(scale_inv)) return scale_inv == 1 ? sums : sums.mul_(scale_inv);
  // The product of the scales leaves float32's range, where that of the factors need not. The larger one comes first,
  // so that no digit is lost on the way.
  const bool is_left_larger = left.scale_inv > right.scale_inv;
  return sums.mul_(is_left_larger ? left.scale_inv : right.scale_inv)
      .mul_(is_left_larger ? right.scale_inv : left.scale_inv);
}

Fp8Factor Fp8Quantizer::quantize(const at::Tensor& matrix, Fp8Role role, bool is_for_weight) {
  const bool is_weight = role == Fp8Role::kWeight;
  Fp8Factor factor = {QuantizedFp8{}, matrix.size(0), matrix.size(1)};
  const auto quantized = c10::overloaded(
      [&](const DelayedScaling& recipe) -> decltype(factor.quantized) {
        DelayedScalingState& scales = role == Fp8Role::kGradient ? state_.backward : state_.forward;
        const at::ScalarType dtype = fp8_dtype(recipe.fp8_format, pass_of(role));
        const int64_t tensor = is_weight ? 1 : 0;
        return records_amaxes_ ? quantize_fp8_delayed(matrix, dtype, scales, tensor)
                               : quantize_fp8(matrix, dtype, scales.scale[tensor]);
      },
      [&](const Float8CurrentScaling& recipe) -> decltype(factor.quantized) {
        return quantize_fp8_current(matrix, fp8_dtype(recipe.fp8_format, pass_of(role)), recipe.scale);
      },
      [&](const Float8BlockScaling& recipe) -> decltype(factor.quantized) {
        const at::ScalarType dtype = fp8_dtype(recipe.fp8_format, pass_of(role));
        return is_weight ? quantize_fp8_blocks(padded(matrix, 128, 128), dtype, Fp8Block::k128x128, recipe)
                         : quantize_fp8_blocks(padded(matrix, 1, 128), dtype, Fp8Block::k1x128, recipe);
      },
      [&](const MXFP8BlockScaling& recipe) -> decltype(factor.quantized) {
        const bool is_square = is_weight && recipe.enable_2d_quantization;
        return quantize_mxfp8(padded(matrix, is_square ? 32 : 1, 32),
                              fp8_dtype(recipe.fp8_format, pass_of(role)), is_square);
      },
      [&](const NVFP4BlockScaling& recipe) -> decltype(factor.quantized) {
        const bool is_square = is_weight && recipe.enable_2d_quantization;
        at::Tensor blocks = padded(matrix, is_square ? 16 : 1, 16);
        if (is_for_weight && recipe.random_hadamard_transform) blocks = hadamard_transform(blocks);
        QuantizeNVFP4Options options = {.two_dimensional = is_square};
        if (role == Fp8Role::kGradient && recipe.stochastic_rounding)
          options.stochastic_rounding = NVFP4Draws{.seed = state_.seed_, .stream = state_.stream_++};
        return quantize_nvfp4(blocks, options);
      });
  factor.quantized = std::visit(quantized, state_.recipe_);
  return factor;
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
  return is_same_transposed(role) ? transposed(factor) : quantize(matrix.t(), role, is_for_weight);
}

Fp8Factor Fp8Quantizer::weight_factor(const at::Tensor& weight, Fp8WeightCodes codes) {
  using Codes = Fp8WeightCodes;
  using Cache = Fp8LinearState::WeightCache;
  std::unique_ptr<Cache>& cache = state_.cache_;
  if (codes == Codes::kMake) return quantize(weight, Fp8Role::kWeight);
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
