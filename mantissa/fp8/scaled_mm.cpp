#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/Exception.h>
#include <c10/util/overloaded.h>

#include "mantissa/fp8/scaled_mm_internal.h"

namespace mantissa::fp8 {
namespace {

constexpr int64_t kAlignment = 16, kBlock = 128, kMXBlock = 32;

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

at::Tensor padded(const at::Tensor& matrix, int64_t rows, int64_t cols, double value) {
  const int64_t more_rows = rows - matrix.size(0), more_cols = cols - matrix.size(1);
  return more_rows == 0 && more_cols == 0 ? matrix
                                          : at::constant_pad_nd(matrix, {0, more_cols, 0, more_rows}, value);
}

/// The codes of a factor as [rows, length] and row-major, and the numbers of its blocks as they lie in it.
struct Operand {
  at::Tensor codes, numbers;

  int64_t rows() const { return codes.size(0); }
  int64_t length() const { return codes.size(1); }
};

at::Tensor turned(const at::Tensor& matrix, bool is_transposed) {
  return is_transposed ? matrix.t() : matrix;
}

Operand operand_of(const Fp8Factor& factor) {
  return std::visit(
      [&](const auto& quantized) -> Operand {
        using Type = std::decay_t<decltype(quantized)>;
        // Bytes: not every device copies numbers of 8 bits.
        const at::Tensor codes = turned(quantized.codes.view(at::kByte), factor.is_transposed).contiguous();
        if constexpr (std::is_same_v<Type, QuantizedFp8>)
          return {codes, quantized.scale_inv};
        else if constexpr (std::is_same_v<Type, QuantizedFp8Blocks>)
          return {codes, turned(quantized.scale_inv, factor.is_transposed)};
        else if constexpr (std::is_same_v<Type, QuantizedMXFP8>) {
          const at::Tensor exponents = turned(quantized.exponents.view(at::kByte), factor.is_transposed);
          const bool is_square = quantized.block_rows == quantized.block_cols;
          return {codes, is_square ? exponents.repeat_interleave(kMXBlock, 0) : exponents};
        } else
          TORCH_INTERNAL_ASSERT(false, "has_scaled_mm() has refused it");
      },
      factor.quantized);
}

at::ScalarType dtype_of(const Fp8Factor& factor) {
  return std::visit([](const auto& quantized) { return quantized.codes.scalar_type(); }, factor.quantized);
}

bool is_square(const Fp8Factor& factor) {
  const auto* const blocks = std::get_if<QuantizedFp8Blocks>(&factor.quantized);
  return blocks && blocks->block == Fp8Block::k128x128;
}

/// Returns the scales of blocks for codes of [rows, length]; those of padding are 1.
at::Tensor block_scales(const Fp8Factor& factor, const Operand& operand, int64_t rows, int64_t length) {
  if (is_square(factor))
    return padded(operand.numbers, round_up(rows, kBlock) / kBlock, length / kBlock, 1).contiguous();
  return padded(operand.numbers, rows, length / kBlock, 1).t().contiguous().t();
}

/// Returns what at::_scaled_mm gets as scales of a factor.
at::Tensor scales_of(const Fp8Factor& factor, const Operand& operand, int64_t rows, int64_t length) {
  if (std::holds_alternative<QuantizedFp8>(factor.quantized)) return operand.numbers;
  if (std::holds_alternative<QuantizedFp8Blocks>(factor.quantized))
    return block_scales(factor, operand, rows, length);
  return swizzled(padded(operand.numbers, rows, length / kMXBlock, 0).view(at::kFloat8_e8m0fnu));
}

}  // namespace

bool has_scaled_mm(const Fp8Factor& a, const Fp8Factor& b) {
  return a.quantized.index() == b.quantized.index() && !std::holds_alternative<QuantizedNVFP4>(a.quantized);
}

at::Tensor swizzled(const at::Tensor& exponents) {
  const at::Tensor bytes = exponents.view(at::kByte);
  const int64_t rows = round_up(bytes.size(0), 128), cols = round_up(bytes.size(1), 4);
  return padded(bytes, rows, cols, 0)
      .contiguous()
      .view({rows / 128, 4, 32, cols / 4, 4})
      .permute({0, 3, 2, 1, 4})
      .contiguous()
      .view({rows, cols})
      .view(at::kFloat8_e8m0fnu);
}

ScaledMmArguments scaled_mm_arguments(const Fp8Factor& a, const Fp8Factor& b, bool fast_accumulation) {
  const Operand left = operand_of(a), right = operand_of(b);
  const bool is_per_tensor = std::holds_alternative<QuantizedFp8>(a.quantized);
  const int64_t step = is_square(a) || is_square(b) ? 4 * kBlock : kAlignment;
  const int64_t length = round_up(left.length(), step), n = round_up(right.rows(), kAlignment),
                m = is_per_tensor ? left.rows() : round_up(left.rows(), kAlignment);
  const at::Tensor scale_b = scales_of(b, right, n, length);
  return {padded(left.codes, m, length, 0).view(dtype_of(a)),
          padded(right.codes, n, length, 0).view(dtype_of(b)).t(), scales_of(a, left, m, length),
          std::holds_alternative<QuantizedFp8Blocks>(b.quantized) ? scale_b.t() : scale_b,
          fast_accumulation && is_per_tensor};
}

at::Tensor scaled_mm(const Fp8Factor& a, const Fp8Factor& b, const at::Tensor& bias, at::ScalarType dtype,
                     bool fast_accumulation) {
  const ScaledMmArguments arguments = scaled_mm_arguments(a, b, fast_accumulation);
  const bool adds_bias = bias.defined() && dtype != at::kFloat;
  const int64_t missing = arguments.mat2.size(1) - b.rows;
  const auto its_bias =
      adds_bias ? std::optional(at::constant_pad_nd(bias.to(dtype), {0, missing})) : std::nullopt;
  const at::Tensor all =
      at::_scaled_mm(arguments.self, arguments.mat2, arguments.scale_a, arguments.scale_b, its_bias,
                     /*scale_result=*/{}, dtype, arguments.fast_accumulation);
  at::Tensor out = all.narrow(0, 0, a.rows).narrow(1, 0, b.rows).contiguous();
  if (bias.defined() && !adds_bias) out.add_(bias);
  return out;
}

}  // namespace mantissa::fp8
