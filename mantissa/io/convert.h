#pragma once

#include <functional>
#include <map>
#include <string>

#include <c10/core/ScalarType.h>

#include "mantissa/io/sharded.h"
#include "mantissa/io/value_summary.h"

namespace mantissa {

/// The source of a converted tensor.
struct ConvertedTensor {
  std::string source;  ///< its name in the original model
  at::ScalarType dtype = at::kFloat;
};

/// The tensors of a converted model, by their new names.
using Conversion = std::map<std::string, ConvertedTensor>;

/// Returns the header of the converted model, for lay_out_safetensors().
/// Errors: c10::ValueError for a source that the model lacks, and for a cast that is not between two
///         floating-point dtypes.
SafetensorsHeader converted_header(const SafetensorsModel& model, const Conversion& conversion,
                                   const std::map<std::string, std::string>& metadata);

/// Writes the converted model; `layout` is that of its converted_header(). Returns the losses of the casts by
/// new name; tensors that keep their dtype are not listed. `give_others` gives the tensors of the layout that
/// are not in `conversion`.
///
/// Numerics: values are cast as Tensor::to() casts them.
/// Memory:   two pieces of at most kConversionPieceBytes, one as read and one as written, besides the headers
///           and the few MiB of summarize_values(), whatever the size of the model and its tensors.
/// Errors:   those of write_safetensors_files() and SafetensorsFile::read(), and whatever `after_piece`
///           throws, which gets the number of bytes read so far. No file is left then.
/// Example:  convert_test.cpp, Convert.CountsWhatACastLoses
std::map<std::string, CastLoss> convert_safetensors(
    const SafetensorsModel& model, const Conversion& conversion, const SafetensorsLayout& layout,
    const std::function<void(uint64_t bytes_read)>& after_piece = {}, const GiveElements& give_others = {});

inline constexpr int64_t kConversionPieceBytes = 16 << 20;

}  // namespace mantissa
