#pragma once

#include <cmath>

#include "mantissa/kernels/activation.h"

namespace mantissa::kernels::cpu::generic {
namespace {

/// The argument of tanh in GELU's tanh form. It is float64, because the exponential amplifies a small error.
double tanh_argument(double x) { return M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x); }

float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      return x < 0 ? 0 : x;  // a NaN stays one
    case Activation::kGelu:
      return static_cast<float>(0.5 * x * std::erfc(x * -M_SQRT1_2));  // 1 + erf would cancel
    case Activation::kGeluTanh:
      return static_cast<float>(x / (1 + std::exp(-2 * tanh_argument(x))));
  }
  return x;
}

}  // namespace
}  // namespace mantissa::kernels::cpu::generic
