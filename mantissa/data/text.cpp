#include "mantissa/data/text.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "mantissa/data/read_file_internal.h"

namespace mantissa {

namespace fs = std::filesystem;

at::Tensor load_text(const fs::path& path) {
  at::Tensor bytes;
  read_file(path, "text file", [&](int64_t size) {
    bytes = at::empty({size}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    return static_cast<char*>(bytes.mutable_data_ptr());
  });
  return bytes;
}

std::pair<at::Tensor, at::Tensor> split_text(const at::Tensor& symbols, double held_out_fraction) {
  TORCH_CHECK_VALUE(symbols.defined() && symbols.dim() == 1,
                    "split_text: the symbols must have one dimension; flatten() them");
  const int64_t held_out = held_out_size(symbols.size(0), held_out_fraction, "split_text");
  const int64_t kept = symbols.size(0) - held_out;
  return {symbols.narrow(0, 0, kept), symbols.narrow(0, kept, held_out)};
}

TextDataset::TextDataset(const at::Tensor& symbols, int64_t context, int64_t stride)
    : context_(context), stride_(stride) {
  TORCH_CHECK_VALUE(symbols.defined() && symbols.dim() == 1 && symbols.is_cpu() &&
                        (symbols.scalar_type() == at::kByte || symbols.scalar_type() == at::kInt),
                    "TextDataset: the symbols must be one row of uint8 or int32 on the CPU, but are ",
                    symbols.defined() ? symbols.toString() : "undefined",
                    "; load_text() makes such bytes, and to(at::kInt) such ids");
  TORCH_CHECK_VALUE(context >= 1 && stride >= 1, "TextDataset: context ", context, " and stride ", stride,
                    " must both be at least 1; raise them");
  const int64_t length = symbols.size(0);
  TORCH_CHECK_VALUE(length > context, "TextDataset: a text of ", length, " ",
                    symbols.scalar_type() == at::kByte ? "bytes" : "tokens",
                    " is shorter than context + 1 = ", static_cast<uint64_t>(context) + 1,
                    "; give more text or a smaller context");
  symbols_ = symbols.contiguous();
  size_ = (length - context - 1) / stride + 1;
}

Batch TextDataset::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size_, "TextDataset::get_batch");
  const at::Tensor starts = indices.contiguous();
  const int64_t n = starts.size(0);
  const auto options = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
  Batch batch{at::empty({n, context_}, options), at::empty({n, context_}, options), {}};
  const int64_t* start = starts.const_data_ptr<int64_t>();
  auto* data = batch.data.mutable_data_ptr<int64_t>();
  auto* target = batch.target.mutable_data_ptr<int64_t>();
  const auto copy_windows = [&](const auto* text) {
    for (int64_t i = 0; i < n; ++i) {
      const auto* const window = text + start[i] * stride_;
      std::copy_n(window, context_, data + i * context_);
      std::copy_n(window + 1, context_, target + i * context_);
    }
  };
  if (symbols_.scalar_type() == at::kByte)
    copy_windows(symbols_.const_data_ptr<uint8_t>());
  else
    copy_windows(symbols_.const_data_ptr<int32_t>());
  return batch;
}

}  // namespace mantissa
