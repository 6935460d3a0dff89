#pragma once

// What quantization does to the tensors of a layer, counted on sampled steps only, in passes of their own.

#include <mutex>

#include <ATen/core/Tensor.h>

#include "mantissa/core/layer_statistics.h"
#include "mantissa/fp8/quantizer_internal.h"

namespace mantissa {

/// The statistics of a layer, which its state has while it is sampled.
///
/// Threads: any number may add at the same time.
class Fp8Sample {
 public:
  explicit Fp8Sample(LayerSampling sampling) : sampling_(sampling) {}

  bool has_errors() const { return sampling_ == LayerSampling::kTensorsAndErrors; }
  LayerStatistics statistics() const;

  void add(Fp8Role role, const TensorStatistics& counted);
  /// Compares a product with one of the same factors before quantization. `bias` may be undefined; its share of the magnitude
  /// does not count. Nothing is added if there are no values.
  void add_error(const char* name, const at::Tensor& product, const at::Tensor& reference,
                 const at::Tensor& bias = {});

 private:
  LayerSampling sampling_;
  mutable std::mutex mutex_;
  LayerStatistics statistics_;
};

/// Returns a b^T in float32: a [m, k], b [n, k], of any strides and dtypes.
at::Tensor reference_product(const at::Tensor& a, const at::Tensor& b);

/// Compares a matrix with its factor, which is not transposed. `delayed_scale` is the scale of DelayedScaling, which the
/// first step does not use.
TensorStatistics tensor_statistics(const at::Tensor& matrix, const Fp8Factor& factor, const Fp8Recipe& recipe,
                                   float delayed_scale);

}  // namespace mantissa
