#pragma once

#include <optional>
#include <string_view>
#include <tuple>

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

/// The kernels that operators.cpp registers for packed weights. At least one argument of each is packed. They
/// check their own arguments, and their errors begin with the operation's name.
namespace mantissa::packed {

/// What all copies of this library in a process (a program's and a plug-in's) share.
struct Registration {
  /// Deletes a PackedDataPtr. A storage with this deleter belongs to a packed weight.
  void (*delete_data)(void*);
};

/// Returns the registration of the copy whose kernels are registered. Registers this copy's kernels if no
/// copy has registered any.
///
/// Threads: any may call, even while other threads are in libtorch's kernels: only the dispatcher's entries
///          for PrivateUse2 and AutogradPrivateUse2 change, which no other tensor uses, and the one that
///          set_data() asks about tensors on the meta device.
/// Errors:  c10::Error if libtorch refuses a kernel, if the registered kernels belong to another Mantissa
///          whose data this one cannot read, or if the shared object that holds this code cannot be kept
///          loaded.
const Registration& in_charge();

// views.cpp
at::Tensor alias(const at::Tensor& self);
at::Tensor t(const at::Tensor& self);
at::Tensor transpose(const at::Tensor& self, int64_t dim0, int64_t dim1);
at::Tensor permute(const at::Tensor& self, at::IntArrayRef dims);
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size);
at::Tensor unsafe_view(const at::Tensor& self, c10::SymIntArrayRef size);
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride);
at::Tensor expand(const at::Tensor& self, c10::SymIntArrayRef size, bool implicit);

// copies.cpp
at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> memory_format);
at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format);
at::Tensor dequantize_self(const at::Tensor& self);
/// set_data() asks this before it changes `self`. The answer is yes if `from` is packed; `self` no longer
/// requires a gradient then. It is an error if only `self` is packed, unless a MayUnpack exists. If neither is
/// packed, it is libtorch's answer.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from);

/// While it lives, set_data() of a packed weight accepts a plain tensor on this thread.
class MayUnpack {
 public:
  MayUnpack();
  ~MayUnpack();
  MayUnpack(const MayUnpack&) = delete;
  MayUnpack& operator=(const MayUnpack&) = delete;

 private:
  bool before_;
};

// products.cpp
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor matmul(const at::Tensor& self, const at::Tensor& other);
at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2);
at::Tensor mv(const at::Tensor& self, const at::Tensor& vec);
at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                 const at::Scalar& beta, const at::Scalar& alpha);

// einsum.cpp
at::Tensor einsum(std::string_view equation, at::TensorList tensors, at::OptionalIntArrayRef path);

// embedding.cpp
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding_idx,
                     bool scale_grad_by_freq, bool sparse);
using EmbeddingBag = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
EmbeddingBag embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                           bool scale_grad_by_freq, int64_t mode, bool sparse,
                           const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset);
EmbeddingBag embedding_bag_padded(const at::Tensor& weight, const at::Tensor& indices,
                                  const at::Tensor& offsets, bool scale_grad_by_freq, int64_t mode,
                                  bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                                  bool include_last_offset, std::optional<int64_t> padding_idx);

// convolution.cpp
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                       c10::SymIntArrayRef output_padding, c10::SymInt groups);

}  // namespace mantissa::packed
