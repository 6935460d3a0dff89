#include "mantissa/models/rotary.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

namespace mantissa {
namespace {

at::Tensor scale(const at::Tensor& frequencies, const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kLinear) return frequencies / scaling.factor;
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const double longest = context / scaling.low_freq_factor, shortest = context / scaling.high_freq_factor;
  const at::Tensor wavelength = frequencies.reciprocal() * (2 * M_PI);
  const at::Tensor lowered = at::where(wavelength > longest, frequencies / scaling.factor, frequencies);
  const at::Tensor share = (wavelength.reciprocal() * context - scaling.low_freq_factor) /
                           (scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor blended = (1 - share) * lowered / scaling.factor + share * lowered;
  const at::Tensor between = wavelength.ge(shortest).logical_and(wavelength.le(longest));
  return at::where(between, blended, lowered);
}

}  // namespace

at::Tensor rotary_frequencies(int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling) {
  const at::Tensor even = at::arange(0, head_dim, 2, at::TensorOptions(at::kFloat).device(at::kCPU));
  const at::Tensor frequencies = at::pow(theta, even / head_dim).reciprocal();
  return scaling ? scale(frequencies, *scaling) : frequencies;
}

RotaryAngles rotary_angles(const at::Tensor& frequencies, int64_t length, const at::Tensor& like,
                           int64_t first) {
  const at::Tensor positions =
      at::arange(first, first + length, at::TensorOptions(at::kFloat).device(like.device()));
  const at::Tensor half = positions.unsqueeze(1) * frequencies;
  const at::Tensor angles = at::cat({half, half}, 1);
  return {angles.cos().to(like.scalar_type()), angles.sin().to(like.scalar_type())};
}

at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return x * angles.cos + at::cat({-halves[1], halves[0]}, -1) * angles.sin;
}

}  // namespace mantissa
