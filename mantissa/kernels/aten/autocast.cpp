#include <array>
#include <atomic>
#include <utility>

#include <ATen/SavedTensorHooks.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/TracerMode.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/core/weak_map.h"
#include "mantissa/kernels/aten/autocast_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/registration_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/cpu/fingerprint.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::kernels::aten::autocast {
namespace {

using at::Scalar;
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Computes out = a b + bias for matrices. `a` has 16 bits; `out` has 16 bits, or is float32 rounded to a's
/// dtype.
void multiply(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out) {
  Gemm g;
  g.m = a.size(0);
  g.k = a.size(1);
  g.n = b.size(1);
  g.a = matrix(a.const_data_ptr(), a);
  g.b = matrix(b.const_data_ptr(), b);
  g.out = matrix(out.mutable_data_ptr(), out);
  g.round_to = g.a.element;
  if (bias.defined())
    g.addend = {bias.const_data_ptr(), element_of(bias.scalar_type()), /*row_stride=*/0, bias.stride(0), 0};
  matmul::gemm(g);
}

Tensor rows_of(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// Multiplies 16-bit x [..., k] by float32 weight [k, n] and adds bias [n]; the result is [..., n] in x's
/// dtype.
Tensor multiply(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  at::DimVector sizes(x.sizes().begin(), x.sizes().end() - 1);
  sizes.push_back(weight.size(1));
  const Tensor out = at::empty(sizes, x.options());
  multiply(rows_of(x), weight, bias, out.view({-1, weight.size(1)}));
  return out;
}

uint64_t fingerprint(const Tensor& x) {
  return cpu::fingerprint({x.const_data_ptr<float>(), x.size(0), x.size(1), x.stride(0), x.stride(1)});
}

thread_local bool casts_are_separate = false;
std::atomic<bool> is_mixing = true;

bool has_tangent(const Tensor& x) { return x._fw_grad(/*level=*/0).defined(); }

/// True if this thread is inside a transformation of functorch. functorch's thread-local state does not show
/// this: it stays after the first transformation.
bool is_transformed() {
  constexpr c10::DispatchKeySet kInside(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode});
  return c10::impl::tls_local_dispatch_key_set().included_.has_any(kInside);
}

/// True if code other than autograd and autocast observes the operations, and would miss those that a kernel
/// does not call.
bool is_observed(std::initializer_list<const Tensor*> tensors) {
  if (casts_are_separate || !is_mixing.load(std::memory_order_relaxed) ||
      at::tracer::impl::is_dispatch_enabled() || is_transformed())
    return true;
  for (const Tensor* const x : tensors)
    if (x->defined() && (at::isTensorSubclassLike(*x) || has_tangent(*x))) return true;
  return false;
}

/// True if autograd records what this thread computes. Below AutoDispatchBelowAutograd it does not.
bool is_recording() {
  return at::GradMode::is_enabled() &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradFunctionality);
}

bool has_hooks_on_saved_tensors() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

class MixedProduct : public torch::autograd::Function<MixedProduct> {
 public:
  /// `is_transposed` means that the weight is [n, k], as layers store it.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, bool is_transposed) {
    // The gradient of x needs the weight; the gradient of the weight needs x.
    const bool needs_weight = x.requires_grad(), needs_x = weight.requires_grad();
    ctx->save_for_backward({needs_x ? x : Tensor(), needs_weight ? weight : Tensor()});
    ctx->saved_data["weight"] = weight;  // for its layout, and to see whether it changed
    // Hooks may deliberately return another weight, so the state is not checked under hooks.
    if (needs_weight && !has_hooks_on_saved_tensors()) ctx->saved_data["state"] = state_of(weight);
    ctx->saved_data["is_transposed"] = is_transposed;
    const Tensor addend = bias.value_or(Tensor());
    if (addend.defined()) ctx->saved_data["bias"] = addend.scalar_type();
    return multiply(x, is_transposed ? weight.t() : weight, addend);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (ctx->needs_input_grad(0)) check_unchanged(*ctx);
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &gradient = gradients[0];
    const bool is_transposed = ctx->saved_data["is_transposed"].toBool();

    variable_list result(4);
    // libtorch's operations compute the gradients if the backward pass is differentiated itself, if only they
    // can read the gradient (a vmap batch, or a lazily negated tensor), or while the kernels are switched off.
    const bool by_operations = at::GradMode::is_enabled() || is_observed({&gradient, &x, &weight}) ||
                               !fit(gradient, x, weight, is_transposed) || !registration::in_charge().is_on();
    if (ctx->needs_input_grad(0)) {
      const Tensor by_row = is_transposed ? weight : weight.t();  // [n, k]
      result[0] =
          by_operations ? gradient.matmul(by_row.to(gradient.scalar_type())) : multiply(gradient, by_row, {});
    }
    if (ctx->needs_input_grad(1)) {
      const Tensor rows = rows_of(gradient), inputs = rows_of(x);
      if (by_operations) {
        const Tensor by_k = inputs.t().mm(rows).to(at::kFloat);
        result[1] = is_transposed ? by_k.t() : by_k;
      } else {
        result[1] = empty_gradient(ctx->saved_data["weight"].toTensor(), is_transposed ? rows : inputs,
                                   is_transposed ? inputs : rows);
        if (is_transposed) {
          multiply(rows.t(), inputs, {}, result[1]);
        } else {
          multiply(inputs.t(), rows, {}, result[1]);
        }
      }
    }
    const auto bias = ctx->saved_data.find("bias");
    if (bias != ctx->saved_data.end() && ctx->needs_input_grad(2))
      result[2] = rows_of(gradient).sum(0).to(bias->second.toScalarType());
    return result;
  }

 private:
  /// True if the kernels can read the saved tensors, which hooks or set_data() may have replaced.
  static bool fit(const Tensor& gradient, const Tensor& x, const Tensor& weight, bool is_transposed) {
    if (!is_plain(gradient)) return false;
    const auto rows = [](const Tensor& t) { return t.sizes().slice(0, t.dim() - 1); };
    if (x.defined() && (!is_plain(x) || x.scalar_type() != gradient.scalar_type() ||
                        x.dim() != gradient.dim() || rows(x) != rows(gradient)))
      return false;
    return !weight.defined() ||
           (is_plain(weight) && weight.scalar_type() == at::kFloat && weight.dim() == 2 &&
            weight.size(is_transposed ? 0 : 1) == gradient.size(-1));
  }

  /// Returns an empty gradient for a weight whose rows are the columns of `a` and whose columns are the
  /// columns of `b`. It has the layout of `like`, unless set_data() gave `like` another shape or dtype.
  static Tensor empty_gradient(const Tensor& like, const Tensor& a, const Tensor& b) {
    const std::array<int64_t, 2> sizes = {a.size(1), b.size(1)};
    if (like.sizes() == at::IntArrayRef(sizes) && like.scalar_type() == at::kFloat)
      return at::empty_like(like);
    return at::empty(sizes, at::kFloat);
  }

  /// Returns a number that identifies the weight's content and version. Autograd's version counts the changes
  /// that it sees. It misses changes through `.data()` or a pointer, such as the steps of torch::optim::SGD.
  static int64_t state_of(const Tensor& weight) {
    return static_cast<int64_t>(fingerprint(weight) +
                                static_cast<uint64_t>(weight._version()) * 0x9E3779B97F4A7C15U);
  }

  static void check_unchanged(const AutogradContext& ctx) {
    const auto before = ctx.saved_data.find("state");
    if (before == ctx.saved_data.end()) return;
    const Tensor weight = ctx.saved_data.at("weight").toTensor();
    const bool can_be_read = is_plain(weight) && weight.scalar_type() == at::kFloat && weight.dim() == 2;
    TORCH_CHECK(can_be_read && state_of(weight) == before->second.toInt(),
                "backward of autocast's product by a weight of ", weight.sizes(),
                ": the weight was changed after the forward pass (by an optimizer's step, for instance), and "
                "no copy of it was kept. Change it after the backward pass, or keep 16-bit copies: by a "
                "mantissa::SeparateCasts around the forward pass, in Python by "
                "mantissa_kernels.mixed_products(False)");
  }
};

/// True for a parameter or a view of one. Under no_grad every tensor is a leaf.
bool is_weight(const Tensor& x) { return x.is_leaf() || (x.is_view() && x._base().is_leaf()); }

bool is_floating(const Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

/// True if libtorch's autocast would keep a copy of `weight` until the region ends. Under hooks on saved
/// tensors this is false: checkpointing compares what two forward passes save, and only one of them might
/// find a copy.
bool is_kept_by_autocast(const Tensor& weight) {
  return at::autocast::is_autocast_cache_enabled() && !c10::InferenceMode::is_enabled() &&
         weight.requires_grad() && weight.is_leaf() && !weight.is_view() && !weight.is_inference() &&
         !has_hooks_on_saved_tensors();
}

/// Records a use of `weight`. Returns true if this thread has used it before in the current autocast region
/// and it has not changed since; autocast's copy would not show a change. A new region is detected by its
/// empty cast cache, which no longer holds `mark`.
bool is_used_again(const Tensor& weight) {
  static const Tensor mark = at::zeros({}, at::kFloat).requires_grad_();
  thread_local Tensor region;
  thread_local WeakMap<at::Tensor, uint32_t> versions;
  const Tensor now = at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), mark, at::kCPU);
  if (!now.is_same(region)) {
    versions.clear();
    region = now;
  }
  const auto version = static_cast<uint32_t>(weight._version());
  const auto [first, is_new] = versions.try_emplace(weight, version);
  return !is_new && *first == version;
}

/// Multiplies x [..., k] by the weight, [n, k] if `is_transposed` and else [k, n], and adds a bias [n] or
/// none. Returns nothing if libtorch should compute this product.
std::optional<Tensor> product(const Tensor& x, const Tensor& weight, const Tensor& bias, bool is_transposed) {
  // The first check rules out most calls; nested tensors have no sizes to ask for.
  if (weight.scalar_type() != at::kFloat || x.is_nested() || weight.is_nested()) return std::nullopt;
  if (is_observed({&x, &weight, &bias})) return std::nullopt;
  if (weight.dim() != 2 || x.dim() == 0 || !is_floating(x)) return std::nullopt;
  const int64_t k = weight.size(is_transposed ? 1 : 0), n = weight.size(is_transposed ? 0 : 1);
  if (x.size(-1) != k || x.numel() == 0 || weight.numel() == 0) return std::nullopt;
  if (!is_plain(x) || !is_plain(weight) || !is_weight(weight)) return std::nullopt;
  // A cast turns it into a tensor that autograd may save.
  if (weight.is_inference() && !c10::InferenceMode::is_enabled()) return std::nullopt;
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != n || !is_plain(bias) || !is_floating(bias)))
    return std::nullopt;

  const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return std::nullopt;
  if (bias.defined() && bias.scalar_type() != at::kFloat && bias.scalar_type() != dtype) return std::nullopt;
  Gemm shape;
  shape.m = x.numel() / k;
  shape.k = k;
  shape.n = n;
  shape.a.element = element_of(dtype);
  const Kernel kernel = kernel_for(family_of(shape), shape.a.element);
  if (!kernel.tier) return std::nullopt;
  // On CPUs with bf16 products, reading the weight takes as long as multiplying, and a float32 weight costs
  // twice as much as a 16-bit copy. A weight that is used again, such as a recurrent layer's, is therefore
  // cast once.
  if (kernel.tier == CpuTier::kAvx512Bf16 && is_kept_by_autocast(weight) && is_used_again(weight))
    return std::nullopt;

  const Tensor low = at::autocast::cached_cast(dtype, x, at::kCPU);
  if (!is_recording()) return multiply(low, is_transposed ? weight.t() : weight, bias);
  const auto maybe_bias = bias.defined() ? std::make_optional(bias) : std::nullopt;
  return MixedProduct::apply(low, weight, maybe_bias, is_transposed);
}

class NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::AutocastCPU};
};

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  {
    const NoAutocast guard;
    if (auto y = product(input, weight, bias.value_or(Tensor()), /*is_transposed=*/true)) return *y;
  }
  return Stock<at::_ops::linear>::call(input, weight, bias);
}

Tensor matmul(const Tensor& self, const Tensor& other) {
  {
    const NoAutocast guard;
    if (auto y = product(self, other, {}, /*is_transposed=*/false)) return *y;
  }
  return Stock<at::_ops::matmul>::call(self, other);
}

Tensor mm(const Tensor& self, const Tensor& mat2) {
  if (self.dim() == 2) {
    const NoAutocast guard;
    if (auto y = product(self, mat2, {}, /*is_transposed=*/false)) return *y;
  }
  return Stock<at::_ops::mm>::call(self, mat2);
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
             const Scalar& alpha) {
  if (mat1.dim() == 2 && self.defined() && beta.equal(1) && alpha.equal(1)) {
    const NoAutocast guard;
    if (auto y = product(mat1, mat2, self, /*is_transposed=*/false)) return *y;
  }
  return Stock<at::_ops::addmm>::call(self, mat1, mat2, beta, alpha);
}

bool separate_casts(bool separate) { return std::exchange(casts_are_separate, separate); }

bool mix(bool on) { return is_mixing.exchange(on); }

}  // namespace mantissa::kernels::aten::autocast
