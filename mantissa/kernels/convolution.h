#pragma once

// Convolutions and their gradients, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// Images of up to three dimensions (depth, height, width; missing ones have size 1) in the device's memory.
/// A weight is also stored as images, one per kernel. Strides count elements, may have any sign, and may be 0
/// in an operand that is only read.
template <typename Pointer>
struct ImagesOf {
  Pointer data = nullptr;
  Element element = Element::kFloat32;
  int64_t group_stride = 0, image_stride = 0, channel_stride = 0;
  int64_t strides[3] = {};
};
using ConstImages = ImagesOf<const void*>;
using Images = ImagesOf<void*>;

/// One dimension: tap t of result i reads the source at origin + i * step + t * dilation. Positions outside
/// of [0, size) hold zeros, which are multiplied like any other value: 0 times Inf is NaN there, too.
struct Axis {
  int64_t size = 1;  ///< of the source
  int64_t out = 1, taps = 1;
  int64_t step = 1, dilation = 1, origin = 0;
};

/// Computes out[n, o, i] = bias[o] + the sum over taps t and channels c of source[n, c, position(i, t)]
/// weight[o, c, t], in each of `groups` groups. The gradient of the input is such a convolution with another
/// list of taps.
///
/// Shapes:   every size is at least 1, except that there may be no taps: the result is then the bias.
/// Numerics: sums are float32, in an order that depends neither on the number of threads nor on the CPU's
///           tier (cpu/convolution_kernel.h defines it). The bias is added next; then the result is rounded
///           once, to nearest even, and NaN is kept.
/// Bound:    that of Gemm, with k = channels * taps.
/// Errors:   none; `out` must not overlap any operand.
struct Convolution {
  int64_t batch = 1, groups = 1;
  int64_t channels = 1, outputs = 1;  ///< of each group
  Axis axes[3];
  ConstImages source;
  ConstImages weight;  ///< image_stride is the distance between the kernels of two results
  const void* bias = nullptr;
  Element bias_element = Element::kFloat32;
  int64_t bias_stride = 0;
  Images out;
  /// If true, this is the adjoint of a depthwise convolution with the axes `forward`, in one pass: out[n, o,
  /// y] is the sum of source[n, o, i] weight[o, t] over the taps t, the last one first, and the results i for
  /// which y = position(i, t). `axes` then hold the sizes of source and result, and bound what a block reads:
  /// (extent + taps - 1) pixels.
  bool is_turned = false;
  Axis forward[3];
};

/// Computes out[o, c, t] = the sum over images n and results i of gradient[n, o, i] source[n, c, position(i,
/// t)]: the gradient of a Convolution's weight.
///
/// Shapes:   those of Convolution; every size is at least 1.
/// Numerics: those of Convolution.
/// Bound:    that of Gemm, where k is the number of results.
/// Errors:   none; `out` must not overlap any operand.
struct ConvolutionWeight {
  int64_t batch = 1, groups = 1;
  int64_t channels = 1, outputs = 1;  ///< of each group
  Axis axes[3];
  ConstImages source, gradient;
  Images out;  ///< image_stride is the distance between the kernels of two results
};

}  // namespace mantissa::kernels
