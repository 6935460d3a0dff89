#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "mantissa/quant/packed_formats_internal.h"

namespace mantissa::quant {

void check_rows(const at::Tensor& rows, int64_t count) {
  // One element that stands for all rows, so that the check reads the indices only.
  at::index_select(at::zeros({1}, rows.options().dtype(at::kByte)).expand({count}), 0, rows);
}

std::vector<int64_t> sizes_of_rows(const at::Tensor& rows, at::IntArrayRef sizes) {
  std::vector<int64_t> result = sizes.vec();
  result[0] = rows.numel();
  return result;
}

}  // namespace mantissa::quant
