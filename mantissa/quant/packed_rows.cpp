#include <algorithm>

#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "mantissa/quant/packed_formats_internal.h"

namespace mantissa::quant {

namespace {

/// Whether the rows are in memory that can be read here, and all exist.
bool are_known_to_exist(const at::Tensor& rows, int64_t count) {
  if (!rows.is_cpu()) return false;
  const at::Tensor numbers = rows.resolve_neg().contiguous();
  const auto* const begin = numbers.const_data_ptr<int64_t>();
  return std::all_of(begin, begin + numbers.numel(), [&](int64_t row) { return 0 <= row && row < count; });
}

}  // namespace

void check_rows(const PackedData& weight, const at::Tensor& rows) {
  const int64_t count = weight.sizes()[0];
  TORCH_CHECK_VALUE(rows.is_cpu() || !weight.device().is_cpu(), "embedding: the indices are on ",
                    rows.device(), ", and the packed weight (", weight.description(), ") is on ",
                    weight.device(), "; move one of them");
  // libtorch's check takes microseconds, in which a kernel looks several rows up.
  if (are_known_to_exist(rows, count)) return;
  // One element that stands for all rows, so that the check reads the indices only.
  at::index_select(at::zeros({1}, rows.options().dtype(at::kByte)).expand({count}), 0, rows);
}

std::vector<int64_t> sizes_of_rows(const at::Tensor& rows, at::IntArrayRef sizes) {
  std::vector<int64_t> result = sizes.vec();
  result[0] = rows.numel();
  return result;
}

}  // namespace mantissa::quant
