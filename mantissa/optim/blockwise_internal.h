#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "mantissa/kernels/blockwise.h"
#include "mantissa/optim/blockwise.h"
#include "mantissa/optim/low_bit_form.h"

namespace mantissa {

/// Returns the 256 values of a map, on `device`. Do not write into it.
const at::Tensor& dynamic_map(kernels::DynamicMap map, at::Device device);

/// quantize_blockwise() and dequantize_blockwise() made of tensor operations only, for devices without
/// kernels.
BlockwiseCodes quantize_by_operations(const at::Tensor& values, kernels::DynamicMap map);
at::Tensor dequantize_by_operations(const BlockwiseCodes& quantized, kernels::DynamicMap map);

/// Returns all values in rows of one block each; the last one ends in zeros.
at::Tensor in_blocks(const at::Tensor& values);
/// The inverse: the shape is that of `like`.
at::Tensor out_of_blocks(const at::Tensor& blocks, const at::Tensor& like);

/// Values in rows of one block each, divided by each block's absmax; nan is 0, and inf the largest number.
struct Normalized {
  at::Tensor x, absmax;
};
Normalized normalized(const at::Tensor& values);

/// The codes of states, and their values: see kernels/state_codes.h. Copies tables to a device once, so that steps
/// wait for no copy.
BlockwiseCodes encode_states_by_operations(const at::Tensor& values, kernels::DynamicMap map);
at::Tensor decode_states_by_operations(const BlockwiseCodes& states, kernels::DynamicMap map);

/// The same for codes of 4 bits: see kernels::BlockwiseUpdate.
/// Shapes: values has a multiple of 128 elements; codes is [elements / 2], absmax [elements / 128]; the result of
///         the second function is flat.
BlockwiseCodes encode_states4_by_operations(const at::Tensor& values, kernels::DynamicMap map);
at::Tensor decode_states4_by_operations(const BlockwiseCodes& states, kernels::DynamicMap map);

/// The tensors of a kernels::BlockwiseUpdate. All are contiguous and on one device.
struct UpdateTensors {
  at::Tensor parameter, gradient;
  at::Tensor state1, absmax1;  ///< absmax1 is undefined if state1 is float32
  at::Tensor state2, absmax2;
  /// 0-dim float32, or undefined: the gradient's divisor; nonzero if nothing is to change.
  at::Tensor grad_scale, found_inf;
  /// For stochastic rounding, 0-dim int64; undefined: to nearest.
  at::Tensor stream;
};

/// The factors that depend on the number of the step, 0-dim float32 on the device, or a number where they do
/// not. They replace those of kernels::UpdateFactors.
struct UpdateFactorTensors {
  at::Tensor step_size, eps;
};

/// Returns those of the step with the number `step`, which is 0-dim float32 and counted from 1. They are near
/// kernels::update_factors(): a device may compute powers and roots in another way.
UpdateFactorTensors factors_of_step(kernels::UpdateRule rule, const LowBitHyperparameters& settings,
                                    const at::Tensor& step);

/// Writes `value`, converted, into `tensor`, unless `found_inf` is defined and not 0.
void write_unless(const at::Tensor& found_inf, const at::Tensor& tensor, const at::Tensor& value);

/// Updates a parameter and its states by tensor operations only, with the kernel's bits. Of `update`, the
/// rule, has_4_bit_codes, the factors, maximize, seed and first_draw are read.
void update_by_operations(const kernels::BlockwiseUpdate& update, const UpdateTensors& tensors,
                          const UpdateFactorTensors& factors);

}  // namespace mantissa
