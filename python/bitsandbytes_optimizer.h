#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace mantissa::python {

/// bitsandbytes's operator optimizer_update_8bit_blockwise on the CPU: updates a parameter and its 8-bit states in one
/// pass (BlockwiseUpdate). AdEMAMix, which has three states, is computed by tensor operations between the kernels that
/// decode and encode states.
///
/// Numerics: those of bitsandbytes's kernels for CUDA, which its own CPU kernels follow except in what
///           docs/quantization.md lists.
/// Errors:   c10::ValueError for an optimizer that bitsandbytes has no CPU kernel for, for states that do not fit the
///           parameter, and for other tables of values than bitsandbytes's dynamic maps. Nothing is changed then.
void optimizer_update_8bit_blockwise(const std::string& optimizer_name, const at::Tensor& g,
                                     const at::Tensor& p, const at::Tensor& state1,
                                     const std::optional<at::Tensor>& state2, double beta1, double beta2,
                                     double beta3, double alpha, double eps, int64_t step, double lr,
                                     const at::Tensor& qmap1, const std::optional<at::Tensor>& qmap2,
                                     const at::Tensor& absmax1, const std::optional<at::Tensor>& absmax2,
                                     double weight_decay, double gnorm_scale, bool skip_zeros);

}  // namespace mantissa::python
