#include "mantissa/kernels/aten/operand.h"

namespace mantissa {

kernels::Element element_of(at::ScalarType dtype) {
  return dtype == at::kFloat      ? kernels::Element::kFloat32
         : dtype == at::kBFloat16 ? kernels::Element::kBFloat16
                                  : kernels::Element::kFloat16;
}

Operand::Operand(const at::Tensor& tensor) : original(tensor), plain(tensor.contiguous()) {}
Operand::Operand(const at::Tensor& tensor, at::ScalarType dtype)
    : original(tensor), plain(tensor.to(dtype).contiguous()) {}

void Operand::write_back() const {
  if (!plain.is_same(original)) original.copy_(plain);
}

kernels::ProductInt8 product_of_codes(const at::Tensor& a, const at::Tensor& b) {
  kernels::ProductInt8 p;
  p.m = a.size(0);
  p.n = b.size(0);
  p.k = a.size(1);
  p.a = a.const_data_ptr<int8_t>();
  p.b = b.const_data_ptr<int8_t>();
  p.a_stride = a.stride(0);
  p.b_stride = b.stride(0);
  return p;
}

kernels::QuantizeBlockwise encoding_of(const at::Tensor& values, const at::Tensor& codes,
                                       const at::Tensor& absmax, kernels::DynamicMap map) {
  return {values.const_data_ptr<float>(), codes.mutable_data_ptr<uint8_t>(), absmax.mutable_data_ptr<float>(),
          values.numel(), map};
}

kernels::DequantizeBlockwise decoding_of(const at::Tensor& codes, const at::Tensor& absmax,
                                         const at::Tensor& values, kernels::DynamicMap map) {
  return {codes.const_data_ptr<uint8_t>(), absmax.const_data_ptr<float>(), values.mutable_data_ptr<float>(),
          codes.numel(), map};
}

kernels::UpdateState update_state(const at::Tensor& state, const at::Tensor& absmax) {
  if (!absmax.defined()) return {nullptr, nullptr, state.mutable_data_ptr<float>()};
  return {state.mutable_data_ptr<uint8_t>(), absmax.mutable_data_ptr<float>(), nullptr};
}

}  // namespace mantissa
