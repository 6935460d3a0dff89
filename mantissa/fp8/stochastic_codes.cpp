#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/where.h>

#include "mantissa/fp8/fp8_weight_internal.h"
#include "mantissa/fp8/operators_internal.h"

namespace mantissa {

at::Tensor fp8::round_stochastically(const at::Tensor& values, uint64_t seed, int64_t stream) {
  constexpr int32_t kExponent = 0x7f800000;
  constexpr float kSmallestNormal = 0x1p-6F, kLargest = 448, kDigits = 0x1p-3F, kDraw = 0x1p-24F;
  const at::Tensor x = values.contiguous().clamp(-kLargest, kLargest);
  // The power of two at or below each magnitude. Subnormal numbers have the distance of the smallest normal ones.
  const at::Tensor power = (x.view(at::kInt) & kExponent).view(at::kFloat).clamp_min(kSmallestNormal);
  const at::Tensor distance = power * kDigits;
  const at::Tensor place = x / distance,
                   below = place.floor();  // exact, because the distance is a power of two
  const at::Tensor draws = operators::random_words(seed, stream, x.numel(), x)
                               .bitwise_right_shift(8)
                               .to(at::kFloat)
                               .view(x.sizes());
  const at::Tensor up = (draws * kDraw < place - below).to(at::kFloat);
  return at::where(x.isnan(), x, (below + up) * distance);
}

}  // namespace mantissa
