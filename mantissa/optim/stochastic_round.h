#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Rounds float32 to bfloat16 or float16 up or down at random, with the probabilities that preserve the mean.
/// It lets 16-bit weights without master weights take updates smaller than half their last place.
///
/// Element i, counted in memory order, uses 16 bits of Philox4x32-10 under key `seed`: draw `offset` + i of
/// stream `step`. A tensor that is rounded in pieces, each with its own offset, therefore gets the same bits
/// as the whole tensor, whatever the number of threads, and the same bits on every device.
///
/// Shapes:   `out` and `in` have the same sizes and strides, without gaps.
/// Numerics: values that 16 bits hold exactly do not change: zeros keep their sign, infinities stay, a NaN
///           keeps its payload. |error| < 1 ulp. The mean is `in` exactly; below float16's smallest normal
///           number, 2^-14, it is up to 2^-40 too near zero. Nothing is random past the largest finite
///           number: a value becomes infinite if rounding to nearest makes it infinite (float16: from 65520),
///           and the largest finite number otherwise.
/// Memory:   none on the CPU. On other devices, where it consists of about a hundred tensor operations, 60
///           bytes per element.
/// Errors:   c10::TypeError for other dtypes; c10::ValueError for different shapes or memory with gaps.
/// Source:   Gupta et al. 2015, arXiv:1502.02551, section 3; Salmon et al. 2011, "Parallel random numbers: as
///           easy as 1, 2, 3".
/// Example:  stochastic_round_test.cpp, StochasticRound.MeanIsTheInput.
const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed, uint64_t step,
                                    uint64_t offset = 0);
/// The same with the step on the device, so that replays of a CUDA graph can increment it.
/// Shapes: `step` is 0-dim int64, on the device of `in`.
/// Sync:   none on a GPU; on the CPU the host reads `step` directly.
const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed,
                                    const at::Tensor& step, uint64_t offset = 0);

}  // namespace mantissa
