#pragma once

#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "mantissa/models/llama_options.h"

namespace mantissa {

/// Reads the text of a Llama's config.json. `file` is its name in errors.
///
/// A missing field has the default of LlamaConfig, except for the five sizes, which must be there. Fields that do not
/// change the model, such as torch_dtype, use_cache and the settings of text generation, are not read.
/// Errors: c10::ValueError naming the file and the field: no JSON, another architecture, a value of another type or
///         out of range, a feature that Llama lacks here (other activations than silu, dropout, sliding windows,
///         quantization_config, kinds of rope_scaling other than linear and llama3), and a field that is unknown,
///         because it may change the model.
LlamaOptions parse_llama_config(std::string_view text, const std::string& file);

/// Returns the text of a config.json that transformers reads. `dtype` is that of the weights beside it.
/// Errors: c10::ValueError for a dtype that is not float64, float32, bfloat16 or float16.
std::string make_llama_config(const LlamaOptions& options, at::ScalarType dtype);

}  // namespace mantissa
