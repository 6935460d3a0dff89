#pragma once

#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "mantissa/models/gpt2_options.h"

namespace mantissa {

/// Reads the text of a GPT-2's config.json. `file` is its name in errors.
///
/// A missing field has the default of GPT2Config. Fields that do not change the model, such as torch_dtype, use_cache,
/// n_ctx and the settings of text generation, are not read.
/// Errors: c10::ValueError naming the file and the field: no JSON, another architecture, a value of another type or out of
///         range, a feature that Gpt2 lacks (other activations than GELU, attention without its scale or scaled by layer,
///         cross-attention, quantization_config), and a field that is unknown, because it may change the model.
Gpt2Options parse_gpt2_config(std::string_view text, const std::string& file);

/// Returns the text of a config.json that transformers reads. `dtype` is that of the weights beside it.
/// Errors: c10::ValueError for a dtype that is not float64, float32, bfloat16 or float16.
std::string make_gpt2_config(const Gpt2Options& options, at::ScalarType dtype);

}  // namespace mantissa
