#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/linear_fp8.h"

namespace mantissa {

struct Fp8WeightOptions {
  /// Keeps the values from before the quantization in the host's memory: high_precision_init_val().
  bool preserve_high_precision_init_val = false;
};

/// How a weight that is stored in FP8 takes new values.
enum class Fp8Rounding : uint8_t {
  kNearest,  ///< as each product of a weight in high precision quantizes it; for an optimizer with master weights
  kStochastic  ///< up or down at random so that the mean stays; for an optimizer without master weights
};

/// Turns a trained weight into FP8 codes, its primary storage: no copy in 16 or 32 bits stays. The parameter is then a
/// packed weight (weights/packed_weight.h) that trains, with an Fp8TrainingRule (fp8_training.h): inside an enabled
/// Fp8Autocast, linear_fp8() multiplies these codes, and elsewhere a product has the dequantized values. Both
/// send the parameter its gradient, in the dtype that the weight had.
///
/// Numerics: the codes are those that a product of the weight would make now by the recipe of `state`: at first by the scales
///           of Float8CurrentScaling, and with DelayedScaling by those of its history as soon as there are some. With one
///           scale, |dw| <= max(2^-4 |w|, 2^-10 / scale) in E4M3.
/// Memory:   1 byte per value, and the scales: 4 bytes, or those of the recipe's blocks. Recipes with blocks pad a dimension
///           to whole blocks.
/// Steps:    no operation changes the codes in place. An optimizer steps a master weight, and store_fp8_weight() stores
///           its values.
/// Copies:   clone(), to() and Module::clone() copy the weight with codes of its own. named_parts() has the codes under the
///           parameter's name, and "scale_inv" and, with DelayedScaling, "amax" beside it.
/// Errors:   c10::TypeError for another dtype than float32, float16 or bfloat16; c10::ValueError for no state, a tensor that is
///           no matrix, one that autograd computed, a packed weight, and for a recipe that has no codes for both directions
///           of a weight (MXFP8BlockScaling without enable_2d_quantization) or codes of 4 bits. Nothing has changed then.
/// Source:   Transformer Engine's quantized_model_init().
/// Example:  fp8_weight_test.cpp, Fp8Weight.MasterWeightsTrainBitForBitAsHighPrecision
void make_fp8_weight(const at::Tensor& parameter, const std::shared_ptr<Fp8LinearState>& state,
                     const Fp8WeightOptions& options = {});

/// Whether `tensor` is a weight that make_fp8_weight() has made, or a view or a copy of one.
bool is_fp8_weight(const at::Tensor& tensor);

/// Throws unless a weight can be stored by the recipe with this rounding. `who` begins the error.
/// Errors: c10::ValueError that names the recipe and the cure.
void check_stores_weights(const Fp8Recipe& recipe, Fp8Rounding rounding, const std::string& who);

/// Quantizes new values of a weight that is stored in FP8. With DelayedScaling, call it after update_scales(): each product
/// of the step then has the codes that it would have made.
///
/// kStochastic: the scale is the largest power of two that is at most that of Float8CurrentScaling, so that a value
///              that does not change keeps its code when the scale changes, and the random numbers are the next ones of the
///              layer's state. A value takes one of its two neighbours with the probability that keeps the mean, in steps of
///              2^-24. NaN stays NaN, and inf becomes the largest value.
/// Shapes:      `values` is [out, in], in float32, float16 or bfloat16, on the weight's device.
/// Errors:      c10::TypeError for another weight; c10::ValueError for values of another shape or device; those of
///              check_stores_weights(). Nothing has changed then.
void store_fp8_weight(const at::Tensor& weight, const at::Tensor& values,
                      Fp8Rounding rounding = Fp8Rounding::kNearest);

/// Returns the values that make_fp8_weight() has quantized, on the host, bit for bit; undefined if they were not preserved or
/// were cleared.
/// Errors: c10::TypeError for another weight.
at::Tensor high_precision_init_val(const at::Tensor& weight);
/// Frees them, also for the copies of the weight.
/// Errors: c10::TypeError for another weight.
void clear_high_precision_init_val(const at::Tensor& weight);

}  // namespace mantissa
