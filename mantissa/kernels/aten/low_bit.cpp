#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_int_mm_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/low_bit_internal.h"
#include "mantissa/kernels/aten/registration_internal.h"
#include "mantissa/kernels/cpu/int8.h"
#include "mantissa/kernels/cpu/quantized4.h"

namespace mantissa::kernels::aten::low_bit {
namespace {

at::ScalarType dtype_of(Element element) {
  return element == Element::kFloat32    ? at::kFloat
         : element == Element::kBFloat16 ? at::kBFloat16
                                         : at::kHalf;
}

/// Returns a tensor in the memory of a problem, which the caller does not write to if the problem does not.
at::Tensor view_of(const void* data, at::ScalarType dtype, std::array<int64_t, 2> sizes,
                   std::array<int64_t, 2> strides) {
  return at::from_blob(const_cast<void*>(data), sizes, strides, at::TensorOptions(dtype));
}

template <typename Pointer>
at::Tensor view_of(const MatrixOf<Pointer>& matrix, int64_t rows, int64_t cols) {
  return view_of(matrix.data, dtype_of(matrix.element), {rows, cols}, {matrix.row_stride, matrix.col_stride});
}

at::Tensor view_of(const float* scales, int64_t rows, int64_t cols) {
  return view_of(scales, at::kFloat, {rows, cols}, {1, 1});
}

/// Returns the kernel that the copy of this library in charge has chosen, as for libtorch's operators.
Kernel chosen(KernelFamily family, Element element) {
  return registration::in_charge().kernel_for_own_operator(family, element);
}

void product4_by_libtorch(const Product4& p) {
  const Weight4& w = p.weight;
  const at::Tensor dense = at::cpu::empty({w.rows, w.cols}, dtype_of(p.a.element));
  cpu::dequantize4(
      {w.codes, w.absmax, w.rows * w.cols, w.block, w.code, dense.mutable_data_ptr(), p.a.element},
      cpu::quantized4_build());
  const at::Tensor factor = p.transposed ? dense.t() : dense;
  const at::Tensor a = view_of(p.a, p.m, factor.size(0));
  at::Tensor out = view_of(p.out, p.m, factor.size(1));
  if (p.addend.data == nullptr) {
    at::cpu::mm_outf(a, factor, out);
  } else {
    at::cpu::addmm_outf(view_of(p.addend, p.m, factor.size(1)), a, factor, 1, 1, out);
  }
}

void product_int8_by_libtorch(const ProductInt8& p) {
  const at::Tensor a = view_of(p.a, at::kChar, {p.m, p.k}, {p.a_stride, 1}),
                   b = view_of(p.b, at::kChar, {p.k, p.n}, {1, p.b_stride});
  if (p.sums != nullptr) {
    at::Tensor sums = view_of(p.sums, at::kInt, {p.m, p.n}, {p.n, 1});
    at::cpu::_int_mm_outf(a, b, sums);
    return;
  }
  at::Tensor values = at::cpu::_int_mm(a, b).to(at::kFloat);
  values.mul_(view_of(p.a_scales, p.m, 1) * p.scale).mul_(view_of(p.b_scales, 1, p.n));
  if (p.addend.data != nullptr) values.add_(view_of(p.addend, p.m, p.n).to(at::kFloat));
  view_of(p.out, p.m, p.n).copy_(values);
}

/// Whether libtorch's sums are exact. Without VNNI instructions, oneDNN adds pairs of products in 16 bits, which saturate. What
/// it may use depends on its own environment variables, too, so the product of the largest codes is compared.
bool is_int_mm_exact() {
  static const bool is_exact = [] {
    const at::NoGradGuard no_grad;
    for (const auto& [m, k, n] : {std::array<int64_t, 3>{1, 2, 13}, {9, 77, 13}, {40, 256, 64}}) {
      const at::Tensor a = at::full({m, k}, 127, at::kChar), b = at::full({n, k}, -127, at::kChar);
      if (!at::cpu::_int_mm(a, b.t()).eq(int64_t{-127} * 127 * k).all().item<bool>()) return false;
    }
    return true;
  }();
  return is_exact;
}

}  // namespace

void product4(const Product4& problem) {
  const Kernel kernel = chosen(family_of(problem), problem.a.element);
  if (kernel.tier)
    return cpu::product4(problem, cpu::build_for(cpu::quantized4_builds(), features_of(*kernel.tier)));
  const at::NoGradGuard no_grad;
  product4_by_libtorch(problem);
}

void product_int8(const ProductInt8& problem) {
  const Element element = problem.sums != nullptr ? Element::kFloat32 : problem.out.element;
  const Kernel kernel = chosen(KernelFamily::kProductInt8, element);
  if (kernel.tier)
    return cpu::product_int8(problem, cpu::build_for(cpu::int8_builds(), features_of(*kernel.tier)));
  // libtorch's kernel takes the stride of a transposed factor with one row for that of its columns, and reads past the end.
  if (problem.k == 1 || !is_int_mm_exact()) return cpu::product_int8(problem, cpu::int8_build());
  const at::NoGradGuard no_grad;
  product_int8_by_libtorch(problem);
}

}  // namespace mantissa::kernels::aten::low_bit
