#pragma once

// For the tests of this room: the peer's recorded tensors.

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::quant {

using Tensors = std::map<std::string, at::Tensor>;

/// Returns the tensors that bitsandbytes 0.50.2 computed on a CPU: see docs/quantization.md.
inline Tensors recorded(const std::string& file) {
  return load_safetensors(test_data(file + ".safetensors")).tensors;
}

}  // namespace mantissa::quant
