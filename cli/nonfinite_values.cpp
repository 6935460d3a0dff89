#include "cli/nonfinite_values.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/sum.h>

namespace mantissa::cli {

int64_t nonfinite_values(const at::Tensor& values) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  int64_t count = 0;
  for (const at::Tensor& piece : values.flatten().split(kPiece))
    count += piece.numel() - at::isfinite(piece).sum().item<int64_t>();
  return count;
}

}  // namespace mantissa::cli
