#pragma once

#include <ATen/core/Tensor.h>

#include "mantissa/weights/packed_data.h"

namespace mantissa {

/// Replaces the data (codes and scales) of a trainable packed weight, as an optimizer step does. The weight's views
/// and aliases see the new data, and its autograd hooks and its mark stay. Clones have data of their own.
///
/// Shapes:  `data` has the sizes and the device of the weight's own.
/// Threads: not while another thread uses the weight; between a forward and its backward pass is allowed.
/// Errors:  c10::TypeError unless the weight is packed and marked (marked_weight.h); c10::ValueError if `data` is
///          null or has other sizes or another device. Nothing has changed then.
void replace_trained_data(const at::Tensor& weight, PackedDataPtr data);

}  // namespace mantissa
