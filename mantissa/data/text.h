#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>

#include <ATen/core/Tensor.h>

#include "mantissa/data/dataset.h"

namespace mantissa {

/// Returns the bytes of a text file, for byte-level language models. Shape: uint8 [bytes].
/// Errors: c10::Error naming the file and the reason if it cannot be read; c10::ValueError if it is empty.
at::Tensor load_text(const std::filesystem::path& path);

/// Holds out the end of a text: {train, held out}; the held-out part has round(size * fraction) symbols, which are bytes
/// or token ids. It is the end rather than random windows, because those would overlap the training part.
/// Memory: both are views of `symbols`.
/// Errors: c10::ValueError if the fraction is not between 0 and 1 or leaves either part empty.
std::pair<at::Tensor, at::Tensor> split_text(const at::Tensor& symbols, double held_out_fraction);

/// Windows of a text, to predict the next symbol from: its next byte, or the next of its token ids. Sample i begins at
/// symbol i * stride.
///
/// Shapes: data int64 [n, context], target int64 [n, context], which is shifted by one symbol.
/// With stride 1 every window is a sample (for training); with stride `context` each symbol occurs once (for
/// validation).
class TextDataset final : public Dataset {
 public:
  /// Shape of `symbols`: [length]; uint8 for bytes, int32 for token ids.
  /// Errors: c10::ValueError for other dtypes and shapes, context or stride below 1, or fewer than context +
  ///         1 symbols.
  TextDataset(const at::Tensor& symbols, int64_t context, int64_t stride = 1);
  int64_t size() const override { return size_; }
  Batch get_batch(const at::Tensor& indices) const override;

 private:
  at::Tensor symbols_;
  int64_t context_, stride_, size_;
};

}  // namespace mantissa
