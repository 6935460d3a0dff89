#include <algorithm>

#include <ATen/InferSize.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/WrapDimMinimal.h>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"

// Kernels that return views. A packed weight has two layouts, its own and the transposed one of a matrix, so
// each view is one of these or an error.
namespace mantissa::packed {
namespace {

at::Tensor same(const at::Tensor& self) { return view_of(self, self.sizes(), self.strides()); }

/// Returns a view with the sizes of `self` if these are the sizes that were asked for.
at::Tensor same_if(bool is_same, const char* operation, const at::Tensor& self) {
  if (!is_same) refuse(operation, self);
  return same(self);
}

bool is_size_of(const at::Tensor& self, at::IntArrayRef size) {
  return at::infer_size_dv(size, self.numel()) == at::DimVector(self.sizes());
}

}  // namespace

at::Tensor alias(const at::Tensor& self) { return same(self); }

at::Tensor t(const at::Tensor& self) {
  if (self.dim() != 2) refuse("t", self);
  return transposed(self);
}

at::Tensor transpose(const at::Tensor& self, int64_t dim0, int64_t dim1) {
  const int64_t first = c10::maybe_wrap_dim(dim0, self.dim()), second = c10::maybe_wrap_dim(dim1, self.dim());
  if (first == second) return same(self);
  if (self.dim() != 2) refuse("transpose", self);
  return transposed(self);
}

at::Tensor permute(const at::Tensor& self, at::IntArrayRef dims) {
  at::DimVector wrapped;
  for (const int64_t dim : dims) wrapped.push_back(c10::maybe_wrap_dim(dim, self.dim()));
  if (self.dim() == 2 && wrapped == at::DimVector({1, 0})) return transposed(self);
  at::DimVector in_order(self.dim());
  for (size_t i = 0; i < in_order.size(); ++i) in_order[i] = static_cast<int64_t>(i);
  return same_if(wrapped == in_order, "permute", self);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return same_if(is_size_of(self, C10_AS_INTARRAYREF_SLOW(size)), "view", self);
}

at::Tensor unsafe_view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return same_if(is_size_of(self, C10_AS_INTARRAYREF_SLOW(size)), "_unsafe_view", self);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  const bool is_same =
      self.sizes() == C10_AS_INTARRAYREF_SLOW(size) && self.strides() == C10_AS_INTARRAYREF_SLOW(stride);
  return same_if(is_same, "_reshape_alias", self);
}

at::Tensor expand(const at::Tensor& self, c10::SymIntArrayRef size, bool /*implicit*/) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  const bool is_same = std::equal(sizes.begin(), sizes.end(), self.sizes().begin(), self.sizes().end(),
                                  [](int64_t wanted, int64_t own) { return wanted == own || wanted == -1; });
  return same_if(is_same, "expand", self);
}

}  // namespace mantissa::packed
