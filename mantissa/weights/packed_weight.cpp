#include "mantissa/weights/packed_weight.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"

namespace mantissa {
namespace packed {
namespace {

c10::Storage storage_for(PackedDataPtr data) {
  const size_t bytes = data->nbytes();
  const at::Device device = data->device();
  const std::string message = c10::str(
      "a packed weight (", data->description(), ") of ", data->sizes(),
      " has no bytes that can be read or written as numbers: compute with mantissa::dequantize(weight), "
      "exchange the weight with mantissa::replace_weight(), save the tensors of mantissa::named_parts()");
  auto owner = std::make_unique<PackedDataPtr>(std::move(data));
  c10::DataPtr pointer(/*data=*/nullptr, owner.get(), in_charge().delete_data, device);
  static_cast<void>(owner.release());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(pointer), /*allocator=*/nullptr,
                       /*resizable=*/false);
  // Despite its name it releases nothing: it makes all access to the pointer throw this message.
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

}  // namespace

const PackedDataPtr* find_data(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.key_set().has_backend(c10::BackendComponent::PrivateUse2Bit) || !impl.has_storage())
    return nullptr;
  const c10::DataPtr& pointer = impl.unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != in_charge().delete_data) return nullptr;
  return static_cast<const PackedDataPtr*>(pointer.get_context());
}

const PackedDataPtr& data_of(const at::Tensor& weight) {
  const PackedDataPtr* const data = find_data(weight);
  TORCH_INTERNAL_ASSERT(data);
  return *data;
}

at::Tensor with_dtype(const at::Tensor& weight, at::ScalarType dtype) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(weight.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse2),
      c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(weight.sizes(), weight.strides());
  return made;
}

at::Tensor view_of(const at::Tensor& weight, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(weight.storage()), weight.key_set(), weight.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

at::Tensor transposed(const at::Tensor& weight) {
  const std::array<int64_t, 2> sizes = {weight.size(1), weight.size(0)};
  const std::array<int64_t, 2> strides = {weight.stride(1), weight.stride(0)};
  return view_of(weight, sizes, strides);
}

bool is_transposed(const at::Tensor& weight) {
  const at::IntArrayRef sizes = data_of(weight)->sizes();
  return weight.sizes() != sizes || weight.strides() != at::IntArrayRef(c10::contiguous_strides(sizes));
}

at::Tensor dequantize(const at::Tensor& weight, at::ScalarType dtype) {
  const at::Tensor values = data_of(weight)->dequantize(dtype);
  return is_transposed(weight) ? values.t() : values;
}

void check_frozen(const at::Tensor& weight, const char* operation) {
  TORCH_CHECK_VALUE(
      !weight.requires_grad(), operation, ": the packed weight (", data_of(weight)->description(), ") of ",
      weight.sizes(),
      " requires a gradient, but packed weights are frozen; call set_requires_grad(false) on it "
      "and train an adapter beside it");
}

void refuse(const char* operation, const at::Tensor& weight) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, operation, ": this operation cannot take a packed weight (", data_of(weight)->description(),
      ") of ", weight.sizes(),
      ", which supports products, embedding and convolution; pass mantissa::dequantize(weight)");
}

}  // namespace packed

at::Tensor make_packed_weight(PackedDataPtr data, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(data, "make_packed_weight: got no data");
  TORCH_CHECK_VALUE(is_packed_compute_dtype(dtype) && dtype != at::kDouble,
                    "make_packed_weight: the nominal dtype of a packed weight (", data->description(),
                    ") must be Float, Half or BFloat16; got ", dtype);
  const auto sizes = data->sizes().vec();
  at::Tensor weight = at::detail::make_tensor<c10::TensorImpl>(
      packed::storage_for(std::move(data)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse2),
      c10::scalarTypeToTypeMeta(dtype));
  weight.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return weight;
}

bool is_packed(const at::Tensor& tensor) { return tensor.defined() && packed::find_data(tensor); }

PackedDataPtr packed_data(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_packed(tensor), "packed_data: the tensor is ",
                   tensor.defined() ? "not packed" : "undefined",
                   "; ask is_packed() first, or make it with make_packed_weight()");
  return packed::data_of(tensor);
}

at::Tensor dequantize(const at::Tensor& tensor) {
  return is_packed(tensor) ? packed::dequantize(tensor, tensor.scalar_type()) : tensor;
}

bool is_adapted(const at::Tensor& weight) {
  return is_packed(weight) && packed_data(weight)->base().defined();
}

at::Tensor base_weight(const at::Tensor& weight) {
  return is_adapted(weight) ? packed_data(weight)->base() : weight;
}

at::Tensor with_base_weight(const at::Tensor& weight, const at::Tensor& base) {
  TORCH_CHECK_VALUE(weight.defined() && base.defined() && weight.sizes() == base.sizes(),
                    "with_base_weight: the weight and its new base must have the same sizes");
  if (!is_adapted(weight)) return base;
  return make_packed_weight(packed_data(weight)->with_base(base), base.scalar_type());
}

}  // namespace mantissa
