#pragma once

// The factors of FP8 products.

#include <cstdint>
#include <mutex>
#include <utility>
#include <variant>

#include <ATen/core/Tensor.h>
#include <c10/util/overloaded.h>

#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/kernels/aten/tensor_content.h"

namespace mantissa {

/// A matrix [rows, length] whose blocks, if it has any, lie along its length.
struct Fp8Factor {
  std::variant<QuantizedFp8, QuantizedFp8Blocks, QuantizedMXFP8, QuantizedNVFP4> quantized;
  int64_t rows, length;        ///< without padding, which only the codes have
  bool is_transposed = false;  ///< the codes are those of the matrix [length, rows]
};

/// Calls `visit` with each tensor of a factor.
template <class Visit>
void for_each_tensor(Fp8Factor& factor, const Visit& visit) {
  std::visit(c10::overloaded([&](QuantizedFp8& each) { visit(each.codes), visit(each.scale_inv); },
                             [&](QuantizedFp8Blocks& each) { visit(each.codes), visit(each.scale_inv); },
                             [&](QuantizedMXFP8& each) { visit(each.codes), visit(each.exponents); },
                             [&](QuantizedNVFP4& each) {
                               visit(each.codes), visit(each.block_scale), visit(each.scale);
                             }),
             factor.quantized);
}

/// Returns the same codes for the transposed matrix.
Fp8Factor transposed(Fp8Factor factor);

/// Who multiplies the codes.
enum class Fp8Product : uint8_t {
  kEmulated,   ///< float32 products
  kNative,     ///< the device, where at::_scaled_mm knows the factors
  kNativeFast  ///< the same with fast accumulation, whose sums have fewer digits
};

/// Returns a b^T + bias, summed in float32 and rounded once to `dtype`. `bias` may be undefined.
at::Tensor product(const Fp8Factor& a, const Fp8Factor& b, const at::Tensor& bias, at::ScalarType dtype,
                   Fp8Product how = Fp8Product::kEmulated);

namespace fp8 {
/// Returns the codes of a factor as they are in memory.
const at::Tensor& codes_of(const Fp8Factor& factor);
namespace operators {
/// Returns what product() does, by libtorch's operators.
at::Tensor product(const Fp8Factor& a, const Fp8Factor& b, const at::Tensor& bias, at::ScalarType dtype);
}  // namespace operators
}  // namespace fp8

/// Where a product takes the codes of its weight from.
enum class Fp8WeightCodes : uint8_t {
  kMake,           ///< makes them
  kMakeAndKeep,    ///< and keeps them
  kUseKept,        ///< an error if there are none of this weight
  kUseKeptIfSame,  ///< the kept ones of this step and weight, or else as kMakeAndKeep
  kUseKeptOrMake   ///< the kept ones of this step and weight, or else as kMake
};

/// Quantizes the factors of a layer's products by its recipe. While one lives, no other thread uses the state.
class Fp8Quantizer {
 public:
  /// `records_amaxes`: false leaves the state as it is. `current_scales`: with DelayedScaling, the tensors whose scales are
  /// those of Float8CurrentScaling.
  Fp8Quantizer(Fp8LinearState& state, bool records_amaxes, Fp8Roles current_scales)
      : state_(state),
        lock_(state.mutex_),
        records_amaxes_(records_amaxes),
        current_scales_(current_scales) {}

  Fp8Factor quantize(const at::Tensor& matrix, Fp8Role role);

  /// Returns the factor of the transposed matrix: `factor`'s codes if the recipe has the same scales for both.
  /// `is_for_weight` says that the product is the weight's gradient, whose factors NVFP4 transforms.
  Fp8Factor quantize_transposed(const at::Tensor& matrix, const Fp8Factor& factor, Fp8Role role,
                                bool is_for_weight);

  /// Adds to the layer's sample, if it has one, what quantizing the matrix to this factor did. The state's scales must be
  /// those of the factor.
  void record(const at::Tensor& matrix, const Fp8Factor& factor, Fp8Role role) const;
  /// Returns the layer's sample if it wants the errors of products; null otherwise.
  std::shared_ptr<Fp8Sample> sample_of_errors() const;

  /// Errors: c10::Error for kUseKept without codes of this weight.
  Fp8Factor weight_factor(const at::Tensor& weight, Fp8WeightCodes codes);

 private:
  /// Returns the factor of a weight that is stored in FP8.
  Fp8Factor stored_weight_factor(const at::Tensor& weight, Fp8WeightCodes codes);
  /// Returns the factor of a weight on another device, whose codes are not kept.
  Fp8Factor weight_factor_on_device(const at::Tensor& weight, Fp8WeightCodes codes);
  bool is_same_transposed(Fp8Role role) const;
  Fp8Factor quantize_columns(const at::Tensor& matrix, Fp8Role role, bool is_for_weight);
  decltype(Fp8Factor::quantized) quantize_fp4(const at::Tensor& blocks, Fp8Role role,
                                              QuantizeNVFP4Options options);

  Fp8LinearState& state_;
  std::lock_guard<std::mutex> lock_;
  bool records_amaxes_;
  Fp8Roles current_scales_;
};

struct Fp8LinearState::WeightCache {
  Fp8Factor factor;
  kernels::TensorContent content;  ///< of the weight when it was quantized
  bool is_of_this_step = true;     ///< its amax is in row 0 of the history
};

}  // namespace mantissa
