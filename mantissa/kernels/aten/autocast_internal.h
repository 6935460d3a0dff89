#pragma once

#include <optional>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

/// The kernels that registration.cpp registers for autocast on the CPU. Inside an autocast region they
/// multiply 16-bit activations by a float32 weight, which is rounded to 16 bits while it is packed. No 16-bit
/// copy of the weight is made or kept, and the weight's gradient is written to float32. The numbers are those
/// of a cast, the same product (matmul_internal.h) and a cast back, bit for bit, with one exception: if a
/// weight is used several times, its gradients are added in float32 instead of 16 bits.
///
/// A weight is a two-dimensional float32 parameter, or a view of one, that is the right factor. Backward
/// reads the weight itself if it computes the gradient of the activations. It fails if the weight changed
/// after the forward pass: autograd's version counter shows such a change, as in float32, and a fingerprint
/// shows changes that the counter does not see (through `.data()` or a pointer).
///
/// libtorch's own autocast handles everything else: products that its kernels compute faster, and calls that
/// are traced, transformed by functorch or carry forward-mode gradients. On CPUs with instructions for the
/// 16-bit type it also handles the second and later uses of a weight in a region, and keeps a copy of that
/// weight until the region ends.
namespace mantissa::kernels::aten::autocast {

/// The function that libtorch registers for autocast under `Operator`, such as at::_ops::mm. It casts the
/// arguments and calls the operator again.
template <typename Operator>
using Stock = typename at::autocast::WrapFunction<at::autocast::CastPolicy::lower_precision_fp, at::kCPU,
                                                  typename Operator::schema, typename Operator::schema,
                                                  &Operator::call>::type;

/// Sets whether the calling thread's products leave casts to autocast; returns the previous setting.
bool separate_casts(bool separate);

/// Sets whether products multiply float32 weights without casting them, in all threads. The initial setting
/// is true. Returns the previous setting.
bool mix(bool on);

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor matmul(const at::Tensor& self, const at::Tensor& other);
at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2);
at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                 const at::Scalar& beta, const at::Scalar& alpha);

}  // namespace mantissa::kernels::aten::autocast
