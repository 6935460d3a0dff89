#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <ATen/native/Resize.h>
#include <ATen/ops/_addmm_activation_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/dot_cpu_dispatch.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/util/irange.h>

#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::kernels::aten::matmul {
namespace {

/// A product that our kernels will compute, and the shape of its result.
struct Product {
  Gemm gemm;
  const cpu::GemmBuild* build = nullptr;
  at::DimVector sizes;
  at::ScalarType dtype;
};

/// Prepares a [m, k] times b [k, n], each perhaps in a batch, if shapes and dtypes fit and one of our kernels
/// was chosen. A vector is one row of a or one column of b.
std::optional<Product> product(const at::Tensor& a, const at::Tensor& b, int64_t a_dim, int64_t b_dim) {
  const at::ScalarType dtype = a.scalar_type();
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || b.scalar_type() != dtype) return std::nullopt;
  if (a.dim() != a_dim || b.dim() != b_dim || !is_plain(a) || !is_plain(b)) return std::nullopt;
  if (a.numel() == 0 || b.numel() == 0 || a.size(-1) != b.size(b_dim == 1 ? 0 : -2)) return std::nullopt;
  if (a_dim == 3 && a.size(0) != b.size(0)) return std::nullopt;

  Product p{{}, nullptr, at::DimVector(a.sizes().begin(), a.sizes().end() - 1), dtype};
  if (b_dim > 1) p.sizes.push_back(b.size(-1));
  p.gemm.m = a_dim == 1 ? 1 : a.size(-2);
  p.gemm.k = a.size(-1);
  p.gemm.n = b_dim == 1 ? 1 : b.size(-1);
  p.gemm.batch = a_dim == 3 ? a.size(0) : 1;
  p.gemm.a = matrix(a.const_data_ptr(), a);
  if (a_dim == 1) std::swap(p.gemm.a.row_stride, p.gemm.a.col_stride);
  p.gemm.b = matrix(b.const_data_ptr(), b);
  const KernelFamily family = family_of(p.gemm, /*is_dot=*/a_dim == 1);
  p.build = chosen_build(cpu::gemm_builds(), family, p.gemm.a.element);
  return p.build == nullptr ? std::nullopt : std::optional(p);
}

bool is_real(const at::Scalar& x) { return x.isFloatingPoint() || x.isIntegral(/*includeBool=*/false); }

/// Turns it into alpha * product + beta * self, with `self` broadcast to the result. Returns false if
/// libtorch should compute it.
bool add(Product& p, const at::Tensor& self, const at::Scalar& beta, const at::Scalar& alpha) {
  if (self.scalar_type() != p.dtype || !is_plain(self) || !is_real(beta) || !is_real(alpha)) return false;
  const auto dims = static_cast<int64_t>(p.sizes.size());
  if (self.dim() > dims) return false;
  std::array<int64_t, 3> strides{};
  for (const auto i : c10::irange(self.dim())) {
    const int64_t at = dims - self.dim() + i;
    if (self.size(i) != p.sizes[at] && self.size(i) != 1) return false;
    strides[at] = self.size(i) == 1 ? 0 : self.stride(i);
  }
  p.gemm.alpha = alpha.to<float>();
  p.gemm.beta = beta.to<float>();
  if (p.gemm.alpha == 0) return false;  // libtorch decides whether 0 * NaN is kept
  if (p.gemm.beta == 0) return true;    // an addend that is not read cannot be NaN
  const int64_t first = dims == 3 ? 1 : 0;
  p.gemm.addend = {self.const_data_ptr(), element_of(p.dtype), strides[first],
                   dims > first + 1 ? strides[first + 1] : 0, dims == 3 ? strides[0] : 0};
  return true;
}

/// Returns the addresses of the first byte and of the end of the last element.
std::pair<const char*, const char*> extent(const at::Tensor& x) {
  const auto* const begin = static_cast<const char*>(x.const_data_ptr());
  int64_t last = 0;
  for (const auto i : c10::irange(x.dim())) last += (x.size(i) - 1) * x.stride(i);
  return {begin, begin + (last + 1) * static_cast<int64_t>(x.element_size())};
}

bool overlap(const at::Tensor& x, const at::Tensor& y) {
  if (x.numel() == 0 || y.numel() == 0) return false;
  const auto [x_begin, x_end] = extent(x);
  const auto [y_begin, y_end] = extent(y);
  return x_begin < y_end && y_begin < x_end;
}

/// True if elements of `x` may share memory. It is false if, in the order of strides, each dimension steps
/// over the previous ones.
bool overlaps_itself(const at::Tensor& x) {
  std::array<std::pair<int64_t, int64_t>, 3> dims{};  // stride, size
  dims.fill({0, 1});
  for (const auto i : c10::irange(x.dim())) dims[i] = {x.stride(i), x.size(i)};
  std::sort(dims.begin(), dims.end());
  int64_t covered = 1;
  for (const auto& [stride, size] : dims) {
    if (size == 1) continue;
    if (stride < covered) return true;
    covered += stride * (size - 1);
  }
  return false;
}

/// True if the result may be written to `out` while `inputs` and the addend `self` (or none) are read.
bool is_writable(const Product& p, const at::Tensor& out, std::initializer_list<const at::Tensor*> inputs,
                 const at::Tensor* self) {
  if (out.scalar_type() != p.dtype || !is_plain(out) || out.dim() > 3) return false;
  if (out.sizes() != at::IntArrayRef(p.sizes)) {
    // A resized tensor may move, together with every tensor that shares its memory.
    const auto is_apart = [&](const at::Tensor* x) { return !x->is_alias_of(out); };
    return std::all_of(inputs.begin(), inputs.end(), is_apart) && (self == nullptr || is_apart(self));
  }
  if (overlaps_itself(out)) return false;
  for (const at::Tensor* const input : inputs)
    if (overlap(*input, out)) return false;
  if (self == nullptr || !overlap(*self, out)) return true;
  return self->data_ptr() == out.data_ptr() && self->sizes() == out.sizes() &&
         self->strides() == out.strides();
}

at::Tensor& compute(Product& p, at::Tensor& out) {
  p.gemm.out = matrix(out.mutable_data_ptr(), out);
  cpu::gemm(p.gemm, *p.build);
  return out;
}

at::Tensor compute(Product& p, const at::Tensor& like) {
  at::Tensor out = at::cpu::empty(p.sizes, like.options());
  return compute(p, out);
}

at::Tensor& compute_resized(Product& p, at::Tensor& out) {
  at::native::resize_output(out, p.sizes);
  return compute(p, out);
}

using Scalar = at::Scalar;
using Tensor = at::Tensor;

/// The three forms of beta * self + alpha * a b. They call `stock` if our kernels do not compute it.
template <typename Stock>
Tensor add_product(std::optional<Product> p, const Tensor& self, const Scalar& beta, const Scalar& alpha,
                   const Stock& stock) {
  if (!p || !add(*p, self, beta, alpha)) return stock();
  return compute(*p, self);
}

template <typename Stock>
Tensor& add_product_out(std::optional<Product> p, const Tensor& self, const Tensor& a, const Tensor& b,
                        const Scalar& beta, const Scalar& alpha, Tensor& out, const Stock& stock) {
  if (!p || !add(*p, self, beta, alpha)) return stock();
  if (!is_writable(*p, out, {&a, &b}, p->gemm.addend.data ? &self : nullptr)) return stock();
  return compute_resized(*p, out);
}

template <typename Stock>
Tensor& add_product_(std::optional<Product> p, Tensor& self, const Tensor& a, const Tensor& b,
                     const Scalar& beta, const Scalar& alpha, const Stock& stock) {
  if (!p || self.sizes() != at::IntArrayRef(p->sizes)) return stock();
  return add_product_out(std::move(p), self, a, b, beta, alpha, self, stock);
}

}  // namespace

void gemm(const Gemm& g) {
  const Element element = g.a.element != Element::kFloat32 ? g.a.element : g.b.element;
  if (element == Element::kFloat32) return cpu::gemm(g, cpu::build_for(cpu::gemm_builds(), cpu_features()));
  cpu::gemm(g, own_build(cpu::gemm_builds(), family_of(g), element));
}

Tensor mm(const Tensor& self, const Tensor& mat2) {
  auto p = product(self, mat2, 2, 2);
  return p ? compute(*p, self) : at::cpu::mm(self, mat2);
}

Tensor& mm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  auto p = product(self, mat2, 2, 2);
  if (!p || !is_writable(*p, out, {&self, &mat2}, nullptr)) return at::cpu::mm_out(out, self, mat2);
  return compute_resized(*p, out);
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
             const Scalar& alpha) {
  return add_product(product(mat1, mat2, 2, 2), self, beta, alpha,
                     [&] { return at::cpu::addmm(self, mat1, mat2, beta, alpha); });
}

Tensor& addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  return add_product_out(product(mat1, mat2, 2, 2), self, mat1, mat2, beta, alpha, out,
                         [&]() -> Tensor& { return at::cpu::addmm_out(out, self, mat1, mat2, beta, alpha); });
}

Tensor& addmm_(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
               const Scalar& alpha) {
  return add_product_(product(mat1, mat2, 2, 2), self, mat1, mat2, beta, alpha,
                      [&]() -> Tensor& { return at::cpu::addmm_(self, mat1, mat2, beta, alpha); });
}

Tensor addmm_activation(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                        const Scalar& alpha, bool use_gelu) {
  auto p = product(mat1, mat2, 2, 2);
  // libtorch rounds the sum and then the activation's result; our kernel rounds once.
  if (p) p->gemm.activation = use_gelu ? Activation::kGelu : Activation::kRelu;
  return add_product(std::move(p), self, beta, alpha,
                     [&] { return at::cpu::_addmm_activation(self, mat1, mat2, beta, alpha, use_gelu); });
}

Tensor bmm(const Tensor& self, const Tensor& mat2) {
  auto p = product(self, mat2, 3, 3);
  return p ? compute(*p, self) : at::cpu::bmm(self, mat2);
}

Tensor& bmm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  auto p = product(self, mat2, 3, 3);
  if (!p || !is_writable(*p, out, {&self, &mat2}, nullptr)) return at::cpu::bmm_out(out, self, mat2);
  return compute_resized(*p, out);
}

Tensor baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
               const Scalar& alpha) {
  return add_product(product(batch1, batch2, 3, 3), self, beta, alpha,
                     [&] { return at::cpu::baddbmm(self, batch1, batch2, beta, alpha); });
}

Tensor& baddbmm_out(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                    const Scalar& alpha, Tensor& out) {
  return add_product_out(
      product(batch1, batch2, 3, 3), self, batch1, batch2, beta, alpha, out,
      [&]() -> Tensor& { return at::cpu::baddbmm_out(out, self, batch1, batch2, beta, alpha); });
}

Tensor& baddbmm_(Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                 const Scalar& alpha) {
  return add_product_(product(batch1, batch2, 3, 3), self, batch1, batch2, beta, alpha,
                      [&]() -> Tensor& { return at::cpu::baddbmm_(self, batch1, batch2, beta, alpha); });
}

Tensor addmv(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta,
             const Scalar& alpha) {
  return add_product(product(mat, vec, 2, 1), self, beta, alpha,
                     [&] { return at::cpu::addmv(self, mat, vec, beta, alpha); });
}

Tensor& addmv_out(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  return add_product_out(product(mat, vec, 2, 1), self, mat, vec, beta, alpha, out,
                         [&]() -> Tensor& { return at::cpu::addmv_out(out, self, mat, vec, beta, alpha); });
}

Tensor& addmv_(Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha) {
  return add_product_(product(mat, vec, 2, 1), self, mat, vec, beta, alpha,
                      [&]() -> Tensor& { return at::cpu::addmv_(self, mat, vec, beta, alpha); });
}

Tensor dot(const Tensor& self, const Tensor& tensor) {
  auto p = product(self, tensor, 1, 1);
  return p ? compute(*p, self) : at::cpu::dot(self, tensor);
}

}  // namespace mantissa::kernels::aten::matmul
