#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/ScalarType.h>
#include <ATen/core/Tensor.h>

// Weights that a file has in FP8: Float8_e4m3fn codes [out, in] with "name.scale_inv", which is one float32 scale or one for
// each block of 128 x 128 codes, or with "name.exponents", one Float8_e8m0fnu for each block of 32 x 32. named_parts()
// (weights/named_parts.h) writes them for weights of make_fp8_weight() (fp8/fp8_weight.h).
namespace mantissa {

/// Whether `name` is such a weight. `dtypes` are those of all tensors of the file.
bool is_stored_fp8(const std::map<std::string, at::ScalarType>& dtypes, const std::string& name);

/// Returns the names of the tensors that it consists of, its own first.
std::vector<std::string> stored_fp8_parts(const std::map<std::string, at::ScalarType>& dtypes,
                                          const std::string& name);

/// Returns its values: code * scale_inv in float32, rounded once to `dtype`.
/// Errors: c10::ValueError that names the tensor at fault for scales that do not fit the codes.
at::Tensor dequantize_stored_fp8(const std::map<std::string, at::Tensor>& stored, const std::string& name,
                                 at::ScalarType dtype = at::kFloat);

}  // namespace mantissa
