#include "mantissa/optim/stochastic_round.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "mantissa/kernels/aten/device_kernels.h"
#include "mantissa/kernels/stochastic_round_internal.h"
#include "mantissa/optim/stochastic_round_internal.h"

namespace mantissa {
namespace {

using kernels::kDrawsPerBlock;
using kernels::Product;

/// For devices without a kernel: implements stochastic_round_internal.h with tensor operations; int64 tensors
/// hold the 32-bit words.
struct TensorOps {
  using Word = at::Tensor;
  using Constant = int64_t;
  using Bits = at::Tensor;

  /// Multiplies by 16-bit halves, so that nothing exceeds 63 bits.
  static Product<Word> multiply(const Word& a, int64_t b) {
    const Word low = (a & 0xffff) * b;
    const Word high = right_shift(a, 16) * b + right_shift(low, 16);
    return {right_shift(high, 16), (high & 0xffff) * 0x10000 + (low & 0xffff)};
  }
  static Bits choose(const at::Tensor& condition, const Bits& a, const Bits& b) {
    return at::where(condition, a, b);
  }
  static Bits choose(const at::Tensor& condition, const Bits& a, int32_t b) {
    return at::where(condition, a, b);
  }
  static Bits at_most(const Bits& a, int32_t b) { return a.clamp_max(b); }
  static at::Tensor right_shift(const at::Tensor& a, int32_t by) { return a.bitwise_right_shift(by); }
  static at::Tensor as_float(const Bits& bits) { return bits.view(at::kFloat); }
  static Bits truncate(const at::Tensor& value) { return value.to(at::kInt); }
};

/// Returns all of a tensor's memory as one row.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

}  // namespace

void stochastic_round_by_operations_(const at::Tensor& out, const at::Tensor& in, uint64_t seed,
                                     const at::Tensor& step, uint64_t offset) {
  const at::NoGradGuard no_grad;
  const auto skip = static_cast<int64_t>(offset % kDrawsPerBlock),
             first_block = static_cast<int64_t>(offset / kDrawsPerBlock);
  const int64_t blocks = (skip + in.numel() + kDrawsPerBlock - 1) / kDrawsPerBlock;
  const at::Tensor block = at::arange(blocks, in.options().dtype(at::kLong)) + first_block;
  const auto shifted = [](const at::Tensor& value, int32_t by) { return TensorOps::right_shift(value, by); };
  const auto low_word = [&](const at::Tensor& value) { return (value & 0xffffffff).expand_as(block); };
  const auto random = kernels::philox<TensorOps>(
      {{low_word(block), shifted(block, 32), low_word(step), low_word(shifted(step, 32))}}, seed);
  std::vector<at::Tensor> draws;
  for (const at::Tensor& word : random.words) draws.push_back(word & 0xffff);
  for (const at::Tensor& word : random.words) draws.push_back(shifted(word, 16));
  const at::Tensor draw = at::stack(draws, 1).flatten().narrow(0, skip, in.numel()).to(at::kInt);
  const at::Tensor bits = kernels::stochastically_rounded<TensorOps>(
      flat(in).view(at::kInt), draw,
      out.scalar_type() == at::kHalf ? kernels::kFormatFloat16 : kernels::kFormatBFloat16);
  flat(out).view(at::kShort).copy_(bits);
}

namespace {

void check(const at::Tensor& out, const at::Tensor& in) {
  TORCH_CHECK_TYPE(in.scalar_type() == at::kFloat &&
                       (out.scalar_type() == at::kBFloat16 || out.scalar_type() == at::kHalf),
                   "stochastic_round_: rounds float32 to bfloat16 or float16; got ", in.scalar_type(), " to ",
                   out.scalar_type(), "; convert the input with to(at::kFloat)");
  TORCH_CHECK_VALUE(
      out.sizes() == in.sizes() && out.strides() == in.strides() && in.is_non_overlapping_and_dense() &&
          out.device() == in.device(),
      "stochastic_round_: needs two tensors of one shape and one memory layout without gaps on one "
      "device; got ",
      out.sizes(), " strides ", out.strides(), " on ", out.device(), " for ", in.sizes(), " strides ",
      in.strides(), " on ", in.device(), "; call contiguous() on both");
}

/// Rounds with the kernel of `in`'s device. Returns false if there is none.
bool round_by_kernel(const at::Tensor& out, const at::Tensor& in, uint64_t seed, const int64_t* step,
                     uint64_t offset) {
  auto* const kernel = kernels::aten::device_kernels(in.device().type()).stochastic_round;
  if (kernel == nullptr) return false;
  const auto element =
      out.scalar_type() == at::kHalf ? kernels::Element::kFloat16 : kernels::Element::kBFloat16;
  kernel({in.const_data_ptr<float>(), out.mutable_data_ptr(), element, in.numel(), seed, step, offset});
  out.unsafeGetTensorImpl()->bump_version();
  return true;
}

}  // namespace

const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed, uint64_t step,
                                    uint64_t offset) {
  check(out, in);
  const auto number = static_cast<int64_t>(step);
  if (!in.is_cpu())
    return stochastic_round_(out, in, seed, at::full({}, number, in.options().dtype(at::kLong)), offset);
  round_by_kernel(out, in, seed, &number, offset);
  return out;
}

const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed,
                                    const at::Tensor& step, uint64_t offset) {
  check(out, in);
  TORCH_CHECK_VALUE(step.scalar_type() == at::kLong && step.dim() == 0 && step.device() == in.device(),
                    "stochastic_round_: the step must be a 0-dim int64 tensor on ", in.device(), "; got ",
                    step.toString(), " of shape ", step.sizes(), " on ", step.device());
  if (!round_by_kernel(out, in, seed, step.const_data_ptr<int64_t>(), offset))
    stochastic_round_by_operations_(out, in, seed, step, offset);
  return out;
}

}  // namespace mantissa
