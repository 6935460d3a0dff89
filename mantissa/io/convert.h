#pragma once

#include <functional>
#include <map>
#include <string>

#include <c10/core/ScalarType.h>

#include "mantissa/io/sharded.h"
#include "mantissa/io/value_summary.h"

namespace mantissa {

/// Where a converted tensor comes from.
struct ConvertedTensor {
  std::string source;  ///< its name in the model that is converted
  at::ScalarType dtype = at::kFloat;
};

/// The tensors of a converted model, by their new names.
using Conversion = std::map<std::string, ConvertedTensor>;

/// What the converted model's files hold, to be laid out.
/// Errors: c10::ValueError for a source that the model lacks, and for a cast that is not from one
///         floating-point dtype to another.
SafetensorsHeader converted_header(const SafetensorsModel& model, const Conversion& conversion,
                                   const std::map<std::string, std::string>& metadata);

/// Writes the converted model: `layout` is that of its converted_header(). Returns what the casts lost, by
/// new names; a tensor that keeps its dtype is not in it.
///
/// Numerics: values are cast as Tensor::to() casts them.
/// Memory:   two pieces of at most kConversionPieceBytes, one as read and one as written, besides the headers
///           and the few MiB of summarize_values(); whatever the size of the model and its tensors.
/// Errors:   those of write_safetensors_files() and SafetensorsFile::read(); whatever `after_piece`, which
///           gets the bytes read so far, throws. No file is left then.
/// Example:  convert_test.cpp, Convert.CountsWhatACastLoses
std::map<std::string, CastLoss> convert_safetensors(
    const SafetensorsModel& model, const Conversion& conversion, const SafetensorsLayout& layout,
    const std::function<void(uint64_t bytes_read)>& after_piece = {});

inline constexpr int64_t kConversionPieceBytes = 16 << 20;

}  // namespace mantissa
