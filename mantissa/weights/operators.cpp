#include <string>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"
#include "mantissa/weights/shared_registration_internal.h"

namespace mantissa::packed {
namespace {

/// Returns the first packed tensor among `arguments`, and whether the operation writes to it.
std::pair<at::Tensor, bool> find_packed(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = op.schema().arguments()[i].alias_info();
    const bool is_written = alias && alias->isWrite();
    const auto is_packed = [](const at::Tensor& tensor) { return tensor.defined() && find_data(tensor); };
    const c10::IValue& argument = arguments[i];
    if (argument.isTensor() && is_packed(argument.toTensor())) return {argument.toTensor(), is_written};
    if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector())
        if (is_packed(tensor)) return {tensor, is_written};
    } else if (argument.isList()) {  // of optional tensors, such as indices
      for (const c10::IValue& item : argument.toListRef())
        if (item.isTensor() && is_packed(item.toTensor())) return {item.toTensor(), is_written};
    }
  }
  return {};
}

/// Throws c10::NotImplementedError for an operation that has no kernel for packed weights.
void refuse_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& full_name = op.schema().name();  // aten::add
  const std::string name = full_name.substr(full_name.rfind(':') + 1);
  const auto [weight, is_written] = find_packed(op, torch::jit::last(*stack, op.schema().arguments().size()));
  TORCH_CHECK_NOT_IMPLEMENTED(weight.defined(), name,
                              ": this operation has no kernel for the backend PrivateUse2, which Mantissa "
                              "uses for packed weights, and none of its arguments is one");
  TORCH_CHECK_NOT_IMPLEMENTED(!is_written, name, ": a packed weight (", data_of(weight)->description(),
                              ") of ", weight.sizes(),
                              " cannot be changed in place; make a new weight and exchange the two with "
                              "mantissa::replace_weight()");
  refuse(name.c_str(), weight);
}

/// Operations that libtorch composes of others. They are refused here, because the error of one of those
/// would have its name.
constexpr const char* kRefused[] = {"add.Tensor",
                                    "sub.Tensor",
                                    "mul.Tensor",
                                    "mul.Scalar",
                                    "div.Tensor",
                                    "stack",
                                    "cat",
                                    "chunk",
                                    "slice.Tensor",
                                    "select.int",
                                    "narrow",
                                    "index_select",
                                    "unsqueeze",
                                    "squeeze",
                                    "squeeze.dim",
                                    "split.Tensor",
                                    "split_with_sizes",
                                    "index.Tensor",
                                    "unbind.int",
                                    "repeat",
                                    "diagonal",
                                    "allclose",
                                    "equal",
                                    "_lazy_clone",
                                    "isfinite",
                                    "isnan",
                                    "isinf",
                                    "norm.Scalar",
                                    "bmm",
                                    "baddbmm",
                                    "bilinear",
                                    "sum",
                                    "mean",
                                    "lstm.input",
                                    "gru.input",
                                    "rnn_tanh.input",
                                    "rnn_relu.input"};

/// Whether `op` writes to its first argument, and needs its values for that.
bool is_in_place(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const std::string& name = op.schema().name();
  return name.back() == '_' && name != "aten::requires_grad_" && name != "aten::detach_" &&
         !arguments.empty() && arguments[0].alias_info() && arguments[0].alias_info()->isWrite();
}

/// Registers the refusal of every operation in place. libtorch's kernels would begin some of them, and fail
/// when they need the bytes.
void refuse_in_place(const KernelLibrary& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (op && is_in_place(*op))
      library->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
  }
}

/// Registers what both keys need: autograd would decompose these operations, or would save a dequantized copy.
void add_arithmetic(const KernelLibrary& library) {
  library->impl("linear", TORCH_FN(linear));
  library->impl("matmul", TORCH_FN(matmul));
  library->impl("mm", TORCH_FN(mm));
  library->impl("mv", TORCH_FN(mv));
  library->impl("addmm", TORCH_FN(addmm));
  library->impl("einsum", TORCH_FN(einsum));
  library->impl("embedding", TORCH_FN(embedding));
  library->impl("embedding_bag", TORCH_FN(embedding_bag));
  library->impl("embedding_bag.padding_idx", TORCH_FN(embedding_bag_padded));
  library->impl("convolution", TORCH_FN(convolution));
  library->impl("dequantize.self", TORCH_FN(dequantize_self));
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  for (const char* const name : kRefused)
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
}

/// The views keep libtorch's autograd kernels, which record what is a view of what.
KernelLibrary backend_library() {
  KernelLibrary library = kernel_library(c10::DispatchKey::PrivateUse2);
  add_arithmetic(library);
  library->impl("alias", TORCH_FN(alias));
  library->impl("t", TORCH_FN(t));
  library->impl("transpose.int", TORCH_FN(transpose));
  library->impl("permute", TORCH_FN(permute));
  library->impl("view", TORCH_FN(view));
  library->impl("_unsafe_view", TORCH_FN(unsafe_view));
  library->impl("_reshape_alias", TORCH_FN(reshape_alias));
  library->impl("expand", TORCH_FN(expand));
  library->impl("clone", TORCH_FN(clone));
  library->impl("_to_copy", TORCH_FN(to_copy));
  refuse_in_place(library);
  return library;
}

/// The meta device ranks above all backends, so set_data() of a tensor without values asks here.
KernelLibrary meta_library() {
  KernelLibrary library = kernel_library(c10::DispatchKey::Meta);
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  return library;
}

KernelLibrary autograd_library() {
  KernelLibrary library = kernel_library(c10::DispatchKey::AutogradPrivateUse2);
  add_arithmetic(library);
  return library;
}

KernelLibrary fallback_library() {
  KernelLibrary library = kernel_library(c10::DispatchKey::PrivateUse2, "_");
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
  return library;
}

std::vector<KernelLibrary> make_kernels() {
  std::vector<KernelLibrary> made;
  made.push_back(backend_library());
  made.push_back(autograd_library());
  made.push_back(meta_library());
  made.push_back(fallback_library());
  return made;
}

constexpr Registration kRegistration = {
    .delete_data = [](void* data) { delete static_cast<PackedDataPtr*>(data); },
};

}  // namespace

const Registration& in_charge() {
  // The layout covers Registration and the virtual functions of PackedData.
  static const void* const first = find_or_register({.name = "packed_weights",
                                                     .layout = 3,
                                                     .registration = &kRegistration,
                                                     .function = "make_packed_weight",
                                                     .make = &make_kernels});
  return *static_cast<const Registration*>(first);
}

}  // namespace mantissa::packed
