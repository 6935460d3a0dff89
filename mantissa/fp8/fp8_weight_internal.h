#pragma once

// The data of a weight that is stored in FP8.

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/quantizer_internal.h"
#include "mantissa/weights/packed_data.h"

namespace mantissa {

/// The codes of a trained weight.
class Fp8Weight final : public PackedData {
 public:
  struct Codes {
    Fp8Factor factor;
    at::Tensor
        amax;  ///< of the values that were quantized, float32 without dimensions; only with DelayedScaling
  };
  /// The values before the first quantization; the weight's data share it from step to step.
  struct InitVal {
    at::Tensor values;
    bool preserves = false;
  };

  Fp8Weight(Fp8Recipe recipe, Codes codes, std::shared_ptr<InitVal> init_val);

  std::string description() const override;
  at::IntArrayRef sizes() const override { return sizes_; }
  Parts parts() const override;
  PackedDataPtr with_parts(Parts parts) const override;
  /// The codes have the weight's own shape: a file has no padding.
  Parts state(const std::string& name) const override;
  PackedDataPtr with_state(const Parts& stored, const std::string& name) const override;
  PackedDataPtr with_values(const at::Tensor& values, const std::string& name) const override;
  at::Tensor dequantize(at::ScalarType dtype) const override;

  const Fp8Recipe& recipe() const { return recipe_; }
  const Codes& codes() const { return codes_; }
  const std::shared_ptr<InitVal>& init_val() const { return init_val_; }

 private:
  Fp8Recipe recipe_;
  Codes codes_;
  std::shared_ptr<InitVal> init_val_;
  at::DimVector sizes_;
};

/// Returns the data of a weight that is stored in FP8, or of a view of one; null for any other tensor.
std::shared_ptr<const Fp8Weight> fp8_weight_data(const at::Tensor& weight);

/// Returns the factor of a weight that is stored in FP8, or of its transposed view.
Fp8Factor stored_factor(const at::Tensor& weight);

namespace fp8 {

/// Returns float32 values rounded to those of Float8_e4m3fn that are next to them, at random so that the mean stays: value i
/// takes draw i of stream `stream` under key `seed`. What is larger than 448 becomes 448.
at::Tensor round_stochastically(const at::Tensor& values, uint64_t seed, int64_t stream);

}  // namespace fp8
}  // namespace mantissa
