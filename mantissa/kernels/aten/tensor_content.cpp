#include "mantissa/kernels/aten/tensor_content.h"

#include <cstring>

#include "mantissa/kernels/cpu/fingerprint.h"

namespace mantissa::kernels {

namespace {

uint64_t hash_of(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes(), whole = bytes / sizeof(float);
  if (bytes == 0) return 0;
  const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
  // The hash reads 4 bytes at a time and never as numbers. 16-bit tensors of an odd size leave two over.
  const auto columns = static_cast<int64_t>(whole);
  uint64_t hash =
      whole == 0 ? 0 : cpu::fingerprint({reinterpret_cast<const float*>(data), 1, columns, columns, 1});
  uint32_t rest = 0;
  std::memcpy(&rest, data + whole * sizeof(float), bytes - whole * sizeof(float));
  hash ^= rest * 0x9E3779B97F4A7C15U;
  return hash;
}

}  // namespace

TensorContent content_of(const at::Tensor& tensor) {
  return {hash_of(tensor), tensor.scalar_type(), tensor.sizes().vec()};
}

}  // namespace mantissa::kernels
