#pragma once

#include <optional>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

/// The kernels that registration.cpp registers for autocast on the CPU. Inside a region each multiplies
/// 16-bit activations by a float32 weight that is rounded to 16 bits while it is packed, so that no 16-bit
/// copy of it is made or kept, and writes the weight's gradient to float32. The numbers are those of a cast,
/// the same product (matmul_internal.h) and a cast back, bit for bit; only where a weight is used several
/// times are its gradients added in float32 instead of 16 bits.
///
/// A weight is a float32 parameter, or a view of one, of two dimensions, that is the right factor. Backward
/// reads the weight itself if it computes the activations' gradient, and refuses a weight that changed after the
/// forward pass: autograd's version counter shows it, as in float32, and a fingerprint shows changes that the
/// counter does not see (`.data()`, pointers).
///
/// libtorch's own autocast handles everything else: what its own kernels multiply faster, what is traced,
/// transformed by functorch, or carries forward-mode gradients. On CPUs that multiply the type themselves it also
/// handles a weight's second and later uses in a region, for which it keeps a copy until the region ends.
namespace mantissa::kernels::aten::autocast {

/// The function that libtorch registers for autocast in the place of `Operator`, such as at::_ops::mm: it casts the
/// arguments and calls the operator again.
template <typename Operator>
using Stock = typename at::autocast::WrapFunction<at::autocast::CastPolicy::lower_precision_fp, at::kCPU,
                                                  typename Operator::schema, typename Operator::schema,
                                                  &Operator::call>::type;

/// Sets whether the calling thread's products leave casts to autocast; returns what was set before.
bool separate_casts(bool separate);

/// Sets whether any thread's products are mixed; returns what was set before. At first they are.
bool mix(bool on);

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor matmul(const at::Tensor& self, const at::Tensor& other);
at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2);
at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                 const at::Scalar& beta, const at::Scalar& alpha);

}  // namespace mantissa::kernels::aten::autocast
