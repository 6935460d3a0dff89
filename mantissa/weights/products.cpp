#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"
#include "mantissa/weights/products_internal.h"

namespace mantissa::packed {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Computes multiply() without autograd.
Tensor compute(const Tensor& x, const Tensor& matrix, const Tensor& bias) {
  if (x.numel() == 0 || matrix.size(1) == 0) {  // formats see neither empty inputs nor empty results
    at::DimVector sizes(x.sizes().begin(), x.sizes().end() - 1);
    sizes.push_back(matrix.size(1));
    const Tensor zeros = at::zeros(sizes, x.options());
    return bias.defined() ? zeros + bias : zeros;
  }
  const PackedDataPtr& data = data_of(matrix);
  if (is_transposed(matrix)) return data->multiply(x, bias);
  const Tensor y = data->multiply_transposed(x);
  return bias.defined() ? y + bias : y;
}

/// Computes a product that records its own gradients.
Tensor compute_recorded(const Tensor& x, const Tensor& matrix, const Tensor& bias) {
  const PackedDataPtr data = data_of(matrix);
  if (is_transposed(matrix)) return data->multiply(x, bias);
  const Tensor y = data->multiply_transposed(x);
  return bias.defined() ? y + bias : y;
}

class PackedProduct : public torch::autograd::Function<PackedProduct> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& bias,
                        const Tensor& matrix) {
    // This is a view of its own, because the weight's tensor may get other data before the backward pass.
    ctx->saved_data["matrix"] = view_of(matrix, matrix.sizes(), matrix.strides());
    ctx->saved_data["has_bias"] = bias.has_value();
    // A format may return a view, which torch::nn::Linear could not add its bias to in place. Below autograd,
    // views are not recorded.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return compute(x, matrix, bias.value_or(Tensor()));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Tensor& gradient = gradients[0];
    variable_list result(3);
    if (ctx->needs_input_grad(0))
      result[0] = multiply("backward", gradient, transposed(ctx->saved_data["matrix"].toTensor()));
    // The edges are those of the tensors that were given.
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(1))
      result[1] = gradient.sum_to_size({gradient.size(-1)});
    return result;
  }
};

/// Returns x^T for a matrix or a batch of matrices.
Tensor swapped(const Tensor& x) { return x.transpose(-1, -2); }

void check_matrix(const char* operation, const Tensor& weight) {
  TORCH_CHECK_VALUE(weight.dim() == 2, operation, ": a packed weight (", data_of(weight)->description(),
                    ") of ", weight.sizes(),
                    " is no matrix; pass mantissa::dequantize(weight), reshaped as the product needs it");
}

/// Returns M x for a packed matrix M.
Tensor multiply_from_left(const char* operation, const Tensor& matrix, const Tensor& x) {
  check_matrix(operation, matrix);
  check_frozen(matrix, operation);
  if (x.dim() == 1) return multiply(operation, x, transposed(matrix));
  return swapped(multiply(operation, swapped(x), transposed(matrix)));
}

/// Returns a b, of which one is packed. If both are, `a` is dequantized.
Tensor multiply_pair(const char* operation, const Tensor& a, const Tensor& b) {
  if (!find_data(b)) return multiply_from_left(operation, a, b);
  check_matrix(operation, b);
  return multiply(operation, find_data(a) ? dequantize(a, a.scalar_type()) : a, b);
}

void check_dims(const char* operation, const Tensor& x, int64_t dims) {
  TORCH_CHECK_VALUE(x.dim() == dims, operation, ": got a tensor of ", x.sizes(), " where ", dims,
                    dims == 1 ? " dimension is" : " dimensions are", " needed; use matmul() for others");
}

}  // namespace

bool is_recorded(std::initializer_list<Tensor> tensors) {
  if (!at::GradMode::is_enabled() ||
      c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradFunctionality))
    return false;
  for (const Tensor& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) return true;
  return false;
}

void check_input(const char* operation, const Tensor& x, const Tensor& weight) {
  check_frozen(weight, operation);
  TORCH_CHECK_TYPE(is_packed_compute_dtype(x.scalar_type()), operation, ": a packed weight (",
                   data_of(weight)->description(), ") multiplies Float, Half, BFloat16 and Double; got ",
                   x.scalar_type(), "; cast the input");
  TORCH_CHECK_VALUE(x.device() == weight.device(), operation, ": the input is on ", x.device(),
                    " and the packed weight on ", weight.device(), "; move one of them with to()");
}

Tensor multiply(const char* operation, const Tensor& x, const Tensor& matrix, const Tensor& bias) {
  check_input(operation, x, matrix);
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(-1) == matrix.size(0), operation, ": an input of ", x.sizes(),
                    " does not fit a packed matrix of ", matrix.sizes(),
                    ": the size of the input's last "
                    "dimension must be ",
                    matrix.size(0));
  const bool records = data_of(matrix)->records_gradients();
  if (!bias.defined()) {
    if (records) return compute_recorded(x, matrix, bias);
    if (!is_recorded({x})) return compute(x, matrix, bias);
    return PackedProduct::apply(x, std::optional<Tensor>(), matrix);
  }
  TORCH_CHECK_VALUE(bias.dim() == 1 && bias.size(0) == matrix.size(1), operation, ": a bias of ",
                    bias.sizes(), " does not fit ", matrix.size(1), " outputs");
  const Tensor cast = bias.scalar_type() == x.scalar_type() ? bias : bias.to(x.scalar_type());
  if (records) return compute_recorded(x, matrix, cast);
  if (!is_recorded({x, cast})) return compute(x, matrix, cast);
  return PackedProduct::apply(x, std::make_optional(cast), matrix);
}

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (find_data(input)) refuse("linear", input);
  if (bias && bias->defined() && find_data(*bias)) refuse("linear", *bias);
  check_matrix("linear", weight);
  check_frozen(weight, "linear");
  return multiply("linear", input, transposed(weight), bias.value_or(Tensor()));
}

Tensor matmul(const Tensor& self, const Tensor& other) { return multiply_pair("matmul", self, other); }

Tensor mm(const Tensor& self, const Tensor& mat2) {
  check_dims("mm", self, 2);
  check_dims("mm", mat2, 2);
  return multiply_pair("mm", self, mat2);
}

Tensor mv(const Tensor& self, const Tensor& vec) {
  check_dims("mv", self, 2);
  check_dims("mv", vec, 1);
  return multiply_pair("mv", self, vec);
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const at::Scalar& beta,
             const at::Scalar& alpha) {
  if (find_data(self)) refuse("addmm", self);
  check_dims("addmm", mat1, 2);
  check_dims("addmm", mat2, 2);
  const bool is_plain_sum = beta.equal(1) && alpha.equal(1);
  const bool is_bias = self.dim() == 1 && self.size(0) == mat2.size(1);
  if (is_plain_sum && is_bias && find_data(mat2) && !find_data(mat1))
    return multiply("addmm", mat1, mat2, self);
  Tensor y = multiply_pair("addmm", mat1, mat2);
  if (!alpha.equal(1)) y = y * alpha;
  if (beta.equal(0)) return y;  // as in libtorch, NaN in `self` does not matter then
  const Tensor addend = self.to(y.scalar_type());
  return y + (beta.equal(1) ? addend : addend * beta);
}

}  // namespace mantissa::packed
