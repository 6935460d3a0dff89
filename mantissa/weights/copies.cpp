#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/weights/marked_weight_internal.h"
#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::packed {
namespace {

thread_local bool may_unpack = false;

/// Returns the dtype that a copy will have, after checking what the copy was asked for.
at::ScalarType checked_dtype(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(at::kStrided) == at::kStrided && !pin_memory.value_or(false), "to: a packed weight (",
      data_of(self)->description(),
      ") cannot be pinned and has no other layout; pass mantissa::dequantize(weight)");
  const at::ScalarType to = dtype.value_or(self.scalar_type());
  TORCH_CHECK_TYPE(is_packed_compute_dtype(to), "to: a packed weight (", data_of(self)->description(),
                   ") can become Float, Half, BFloat16 or Double; got ", to,
                   "; pass mantissa::dequantize(weight)");
  return to;
}

/// Returns a copy with another nominal dtype. Packed data never changes, so it is shared. The storage is not shared if the
/// weight trains, because the storage of such a weight gets other data.
at::Tensor copy_of(const at::Tensor& self, at::ScalarType dtype) {
  if (!marked::has_key(self)) return with_dtype(self, dtype);
  const at::Tensor copy = make_packed_weight(data_of(self), dtype);
  return is_transposed(self) ? transposed(copy) : copy;
}

}  // namespace

at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> memory_format) {
  if (memory_format == at::MemoryFormat::Contiguous && is_transposed(self)) refuse("contiguous", self);
  data_of(self)->check_clone();
  return copy_of(self, self.scalar_type());
}

// The memory format is ignored: it describes strides, and the parts of a packed weight have their own.
at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> /*memory_format*/) {
  const at::ScalarType to = checked_dtype(self, dtype, layout, pin_memory);
  if (to == at::kDouble) {
    const at::Tensor values = dequantize(self, at::kDouble);
    return device ? values.to(*device, non_blocking) : values;
  }
  PackedDataPtr data = data_of(self);
  if (device && *device != self.device()) data = data->to(*device, non_blocking);
  if (to != self.scalar_type())
    if (PackedDataPtr converted = data->with_dtype(to)) data = std::move(converted);
  if (data == data_of(self)) return copy_of(self, to);
  const at::Tensor copy = make_packed_weight(std::move(data), to);
  return is_transposed(self) ? transposed(copy) : copy;
}

at::Tensor dequantize_self(const at::Tensor& self) { return dequantize(self, self.scalar_type()); }

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if (find_data(from)) {
    TORCH_CHECK_VALUE(self.is_leaf(),
                      "set_data: a tensor that autograd computed cannot become a packed weight; detach() it");
    const bool trains = marked::has_key(from) || (marked::has_key(self) && find_data(self));
    if (!trains) self.unsafeGetTensorImpl()->set_requires_grad(false);
    return true;
  }
  const PackedDataPtr* const data = find_data(self);
  if (!data) return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
  TORCH_CHECK_TYPE(may_unpack, "set_data: a packed weight (", (*data)->description(), ") of ", self.sizes(),
                   " cannot take the values of a plain ", from.scalar_type(),
                   " tensor, as loading a file of plain weights or Module::to(Double) would need; call "
                   "mantissa::replace_weight() with a plain tensor first");
  return true;
}

MayUnpack::MayUnpack() : before_(std::exchange(may_unpack, true)) {}
MayUnpack::~MayUnpack() { may_unpack = before_; }

}  // namespace mantissa::packed
