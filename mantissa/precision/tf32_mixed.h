#pragma once

#include "mantissa/precision/precision.h"

namespace mantissa {

/// "tf32-mixed": float32 weights and activations; products and convolutions in TF32, which has float32's
/// range and 10 bits of its mantissa. NVIDIA's frameworks use it by default. In code that already trains in
/// float32 it changes the speed and the rounding of products, and nothing else.
///
/// Memory:   as in float32.
/// Numerics: operands of products are rounded to TF32 (relative error 2^-11 each); sums are float32. On a
///           CPU, and on GPUs older than sm_80, products are computed in float32, except that oneDNN may use
///           TF32 on CPUs with AMX-FP16 (see amp/matmul_precision_test.cpp).
/// Threads:  run_context() changes settings of the process.
/// Errors:   c10::ValueError from set_float32_matmul_precision() for "highest", which contradicts the mode.
/// Source:   docs/modes.md; NVIDIA's A100 whitepaper, section "TensorFloat-32".
class Tf32Mixed final : public Precision {
 public:
  explicit Tf32Mixed(std::string name = "tf32-mixed");

  Scope run_context() const override;
  void set_float32_matmul_precision(std::optional<std::string> precision) override;
};

}  // namespace mantissa
