#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "mantissa/weights/einsum_internal.h"
#include "mantissa/weights/marked_weight_internal.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/shared_registration_internal.h"

// The kernels of marked weights. At least one argument of each call is marked.
namespace mantissa::marked {
namespace {

using at::Tensor;
using Below = c10::impl::ExcludeDispatchKeyGuard;

/// Passes the gradient of the values on to the packed weight.
class Dequantized : public torch::autograd::Function<Dequantized> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* /*context*/, const Tensor& weight) {
    return mantissa::dequantize(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

/// Returns `tensor` for an operation that no rule computes: without its mark, and the values of a packed weight.
Tensor plain(const Tensor& tensor) {
  if (!has_key(tensor) || !is_packed(tensor)) return without_mark(tensor);
  return Dequantized::apply(without_mark(tensor));
}

/// Whether `tensor` is marked and can be a factor that has a rule.
bool is_marked_matrix(const Tensor& tensor) { return is_marked(tensor) && tensor.dim() == 2; }

/// Whether the rule of `tensor` computes its product with `factor`.
bool decides(const Tensor& tensor, const Tensor& factor) {
  return is_marked_matrix(tensor) &&
         weight_rule(tensor)->computes(without_mark(factor), without_mark(tensor));
}

/// Whether the rule of either factor computes their product.
bool either_decides(const Tensor& a, const Tensor& b) { return decides(b, a) || decides(a, b); }

/// Returns `x` as autocast would give it to a product, with the key under which autocast must not see the
/// product itself; no key outside of a region.
std::pair<Tensor, c10::DispatchKeySet> autocast(const Tensor& x) {
  const at::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device))
    return {x, {}};
  const c10::DispatchKeySet key(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const Below without_autocast(key);
  return {at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device), key};
}

/// Returns x W^T + bias as the rule of the marked matrix W computes it.
Tensor apply(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  const WeightRulePtr rule = weight_rule(weight);
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(-1) == weight.size(1), operation, ": an input of ", x.sizes(),
                    " does not fit a weight (", rule->description(), ") of ", weight.sizes(),
                    ": the size of the input's last dimension must be ", weight.size(1));
  TORCH_CHECK_VALUE(x.device() == weight.device(), operation, ": the input is on ", x.device(),
                    " and the weight (", rule->description(), ") on ", weight.device(),
                    "; move one of them with to()");
  const auto [input, autocast_key] = autocast(plain(x));
  const Below below(autocast_key | c10::DispatchKeySet(kKey));
  return rule->linear(input, without_mark(weight), bias.defined() ? plain(bias) : bias);
}

Tensor swapped(const Tensor& x) { return x.transpose(-1, -2); }

/// Whether the sizes of two factors let their matrix product succeed.
bool can_multiply(const Tensor& a, const Tensor& b) {
  return a.dim() > 0 && b.dim() > 0 && a.size(-1) == b.size(b.dim() == 1 ? 0 : -2);
}

/// Whether the rule of `tensor` answers for its product with `factor`. It is not asked about factors that do not fit,
/// because it may record what it is asked about: apply() refuses them.
bool answers(const Tensor& tensor, const Tensor& factor, bool fits) {
  return fits ? decides(tensor, factor) : is_marked_matrix(tensor);
}

/// Returns a b if the rule of one of them computes it. The second one is asked first.
std::optional<Tensor> multiply(const char* operation, const Tensor& a, const Tensor& b) {
  const bool fits = can_multiply(a, b);
  if (answers(b, a, fits)) return apply(operation, a, b.t());
  if (!answers(a, b, fits)) return std::nullopt;
  if (b.dim() == 1) return apply(operation, b, a);
  TORCH_CHECK_VALUE(b.dim() > 1, operation, ": both factors must have a dimension; got ", b.sizes());
  return swapped(apply(operation, swapped(b), a));
}

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  const bool fits = weight.dim() == 2 && can_multiply(input, weight.t());
  if (answers(weight, input, fits)) return apply("linear", input, weight, bias.value_or(Tensor()));
  const Below below(kKey);
  std::optional<Tensor> plain_bias;
  if (bias && bias->defined()) plain_bias = plain(*bias);
  return at::linear(plain(input), plain(weight), plain_bias);
}

Tensor matmul(const Tensor& self, const Tensor& other) {
  if (const auto product = multiply("matmul", self, other)) return *product;
  const Below below(kKey);
  return at::matmul(plain(self), plain(other));
}

// The shapes of the following are libtorch's to check.
bool are_matrices(const Tensor& a, const Tensor& b) { return a.dim() == 2 && b.dim() == 2; }

Tensor mm(const Tensor& self, const Tensor& mat2) {
  if (are_matrices(self, mat2))
    if (const auto product = multiply("mm", self, mat2)) return *product;
  const Below below(kKey);
  return at::mm(plain(self), plain(mat2));
}

Tensor mv(const Tensor& self, const Tensor& vec) {
  if (vec.dim() == 1 && can_multiply(self, vec) && decides(self, vec)) return apply("mv", vec, self);
  const Below below(kKey);
  return at::mv(plain(self), plain(vec));
}

/// Returns beta addend + alpha product.
Tensor weighted_sum(const Tensor& addend, const Tensor& product, const at::Scalar& beta,
                    const at::Scalar& alpha) {
  const Tensor y = alpha.equal(1) ? product : product * alpha;
  if (beta.equal(0)) return y;  // as in libtorch, NaN in `addend` does not matter then
  const Tensor cast = plain(addend).to(y.scalar_type());
  return y + (beta.equal(1) ? cast : cast * beta);
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const at::Scalar& beta,
             const at::Scalar& alpha) {
  if (are_matrices(mat1, mat2)) {
    const bool is_bias = self.dim() == 1 && self.size(0) == mat2.size(1) && beta.equal(1) && alpha.equal(1);
    if (is_bias && can_multiply(mat1, mat2) && decides(mat2, mat1))
      return apply("addmm", mat1, mat2.t(), self);
    if (const auto product = multiply("addmm", mat1, mat2)) return weighted_sum(self, *product, beta, alpha);
  }
  const Below below(kKey);
  return at::addmm(plain(self), plain(mat1), plain(mat2), beta, alpha);
}

Tensor addmv(const Tensor& self, const Tensor& mat, const Tensor& vec, const at::Scalar& beta,
             const at::Scalar& alpha) {
  if (vec.dim() == 1 && can_multiply(mat, vec) && decides(mat, vec))
    return weighted_sum(self, apply("addmv", vec, mat), beta, alpha);
  const Below below(kKey);
  return at::addmv(plain(self), plain(mat), plain(vec), beta, alpha);
}

Tensor einsum(std::string_view equation, at::TensorList tensors, at::OptionalIntArrayRef path) {
  const bool may_be_product = tensors.size() == 2 && tensors[0].defined() && tensors[1].defined() &&
                              either_decides(tensors[0], tensors[1]);
  if (may_be_product)
    if (auto product = einsum_as_product(equation, tensors, &is_marked_matrix)) return *product;
  std::vector<Tensor> factors;
  for (const Tensor& tensor : tensors) factors.push_back(tensor.defined() ? plain(tensor) : tensor);
  return at::einsum(equation, factors, path);
}

/// Marks a copy of `weight` with a rule of its own.
Tensor marked_copy(const Tensor& copy, const Tensor& weight) {
  insert_rule(copy, weight_rule(weight)->for_copy());
  set_key(copy, true);
  return copy;
}

Tensor clone(const Tensor& self, std::optional<at::MemoryFormat> memory_format) {
  Tensor copy;
  {
    const Below below(kKey);
    copy = at::clone(self, memory_format);
  }
  return marked_copy(copy, self);
}

Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
               std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
               std::optional<at::MemoryFormat> memory_format) {
  Tensor copy;
  {
    const Below below(kKey);
    copy = at::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
  }
  const bool is_same_kind = copy.scalar_type() == self.scalar_type() && copy.layout() == at::kStrided;
  return is_same_kind ? marked_copy(copy, self) : copy;
}

/// set_data() asks this before `self` becomes what `from` is. A marked weight stays marked.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  bool is_compatible = false;
  {
    const Below below(kKey);
    is_compatible = at::_has_compatible_shallow_copy_type(self, from);
  }
  const bool can_be_marked =
      from.layout() == at::kStrided && from.is_floating_point() && is_packed(from) == is_packed(self);
  if (is_compatible && is_marked(self) && !is_marked(from) && can_be_marked) {
    insert_rule(from, weight_rule(self));
    set_key(from, true);
  }
  return is_compatible;
}

/// Operations that give a tensor other memory, as torch::load() does.
constexpr const char* kMemoryOperations[] = {"set_.source_Tensor",
                                             "set_.source_Storage",
                                             "set_.source_Storage_storage_offset",
                                             "set_.source_Tensor_storage_offset",
                                             "set_",
                                             "resize_"};

/// Runs one of them, and gives the rule to the new memory.
void keep_rule(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Tensor self = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  const WeightRulePtr rule = weight_rule(self);
  {
    const Below below(kKey);
    op.callBoxed(stack);
  }
  if (rule) insert_rule(self, rule);
}

KernelLibrary operator_library() {
  KernelLibrary library = kernel_library(kKey);
  library->impl("linear", TORCH_FN(linear));
  library->impl("matmul", TORCH_FN(matmul));
  library->impl("mm", TORCH_FN(mm));
  library->impl("mv", TORCH_FN(mv));
  library->impl("addmm", TORCH_FN(addmm));
  library->impl("addmv", TORCH_FN(addmv));
  library->impl("einsum", TORCH_FN(einsum));
  library->impl("clone", TORCH_FN(clone));
  library->impl("_to_copy", TORCH_FN(to_copy));
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  for (const char* const name : kMemoryOperations)
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&keep_rule>());
  return library;
}

KernelLibrary fallthrough_library() {
  KernelLibrary library = kernel_library(kKey, "_");
  library->fallback(torch::CppFunction::makeFallthrough());
  return library;
}

std::vector<KernelLibrary> make_kernels() {
  std::vector<KernelLibrary> made;
  made.push_back(fallthrough_library());
  made.push_back(operator_library());
  return made;
}

constexpr Registration kRegistration = {.insert = insert_rule, .find = find_rule};

}  // namespace

const Registration& in_charge() {
  // The layout covers Registration and the virtual functions of WeightRule.
  static const void* const first = find_or_register({.name = "marked_weights",
                                                     .layout = 4,
                                                     .registration = &kRegistration,
                                                     .function = "mark_weight",
                                                     .make = &make_kernels});
  return *static_cast<const Registration*>(first);
}

}  // namespace mantissa::marked
