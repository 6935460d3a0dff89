#include <algorithm>
#include <numeric>
#include <utility>

#include <c10/util/irange.h>

#include "mantissa/kernels/cpu/convolution.h"
#include "mantissa/kernels/cpu/convolution_shape_internal.h"

namespace mantissa::kernels::cpu {
namespace {

/// Returns the number of phases: kinds of positions with the same taps. It is capped just above
/// kTurnedPhases.
int64_t phases_of(const Convolution& c) {
  int64_t phases = 1;
  for (const Axis& axis : c.axes)
    phases = std::min(phases * std::min(axis.step, kTurnedPhases + 1), kTurnedPhases + 1);
  return phases;
}

}  // namespace

std::vector<Convolution> adjoint(const Convolution& c) {
  Convolution turned = c;
  const int64_t phases = phases_of(c);
  if (is_depthwise(c) && 1 < phases && phases <= kTurnedPhases) {
    // Separate passes would each read the whole source for a part of the results, and would write scattered
    // results.
    turned.is_turned = true;
    for (const auto a : c10::irange(3)) {
      const Axis& axis = turned.forward[a] = c.axes[a];
      // Of the positions within a distance of extent - 1 + (taps - 1) * dilation, one in `step` belongs to a
      // result.
      const int64_t reach = (axis.taps - 1) * axis.dilation / axis.step + 1;
      turned.axes[a] = {axis.out, axis.size, std::max(reach, axis.taps), 1, 1, 0};
    }
    return {turned};
  }
  std::swap(turned.channels, turned.outputs);
  std::swap(turned.weight.image_stride, turned.weight.channel_stride);
  std::vector<Convolution> passes = {turned};
  for (const auto a : c10::irange(3)) {
    // Tap t takes result i to position y = origin + i * step + t * dilation. For the positions phase + j *
    // step, the taps are first + m * every, and i = j + (phase - origin - t * dilation) / step.
    const Axis& axis = c.axes[a];
    const int64_t every = axis.step / std::gcd(axis.step, axis.dilation);
    std::vector<Convolution> split;
    for (const auto phase : c10::irange(std::min(axis.step, axis.size))) {
      const int64_t most = std::min(every, axis.taps);
      int64_t first = 0;
      while (first < most && (phase - axis.origin - first * axis.dilation) % axis.step != 0) ++first;
      const int64_t taps = first < most ? divide_up(axis.taps - first, every) : 0;
      const int64_t last = first + (taps - 1) * every;  // read backwards, so that positions ascend
      for (Convolution pass : passes) {
        pass.axes[a] = {axis.out, divide_up(axis.size - phase, axis.step), taps, 1, 1, 0};
        if (taps > 0) {
          pass.axes[a].dilation = every * axis.dilation / axis.step;
          pass.axes[a].origin = (phase - axis.origin - last * axis.dilation) / axis.step;
          pass.weight.data = advanced(pass.weight.data, pass.weight.element, last * pass.weight.strides[a]);
          pass.weight.strides[a] *= -every;
        }
        pass.out.data = advanced(pass.out.data, pass.out.element, phase * pass.out.strides[a]);
        pass.out.strides[a] *= axis.step;
        split.push_back(pass);
      }
    }
    passes = std::move(split);
  }
  return passes;
}

}  // namespace mantissa::kernels::cpu
