#pragma once

#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace mantissa::cli {

/// Returns the short names of the floating-point dtypes, such as "bf16", which errors and help use.
std::vector<std::string> dtype_names();

/// Returns the dtype that `text` names, also by PyTorch's or safetensors' name. `choices` are the names that an error
/// offers.
/// Errors: c10::ValueError, which calls the option --dtype, for another name.
at::ScalarType parse_dtype(const std::string& text, const std::vector<std::string>& choices = dtype_names());

/// Returns the one of `choices` that is another name of the dtype `text`: "bfloat16" for "bf16"; "" if there is none.
std::string other_dtype_name(const std::string& text, const std::vector<std::string>& choices);

/// Whether `mantissa convert` may change tensors of this dtype. F8_E8M0 is left alone, because it holds scales.
bool is_castable(at::ScalarType dtype);

}  // namespace mantissa::cli
