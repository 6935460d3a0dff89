#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Rounds float32 to bfloat16 or float16 up or down at random, each with the chance that keeps the mean: what
/// lets 16-bit weights without a float32 copy take updates smaller than half their last place.
///
/// Element i, counted in memory order, takes 16 bits of Philox4x32-10 under key `seed`: draw `offset` + i of
/// stream `step`. A tensor rounded in pieces, each with its own offset, so has the bits of the whole,
/// whatever the number of threads, and the same bits on every device.
///
/// Shapes:   `out` and `in` have the same sizes and strides, without gaps.
/// Numerics: what 16 bits hold exactly stays as it is: zeros with their sign, infinities, a NaN's payload.
///           |error| < 1 ulp. The mean is `in` exactly, below float16's smallest normal number 2^-14 up to
///           2^-40 too near zero. Past the largest finite number nothing is left to chance: becomes infinite
///           what rounding to nearest makes infinite (float16: from 65520), all else the largest finite
///           number.
/// Memory:   on the CPU none; elsewhere, where it is made of some hundred tensor operations, 60 bytes an
///           element.
/// Errors:   c10::TypeError for other dtypes; c10::ValueError for shapes that differ or memory with gaps.
/// Source:   Gupta et al. 2015, arXiv:1502.02551, section 3; Salmon et al. 2011, "Parallel random numbers: as
///           easy as 1, 2, 3".
/// Example:  stochastic_round_test.cpp, StochasticRound.MeanIsTheInput.
const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed, uint64_t step,
                                    uint64_t offset = 0);
/// The same with the step on the device, where the replays of a CUDA graph can count it.
/// Shapes: `step` is 0-dim int64, on the device of `in`.
/// Sync:   none, except on the CPU, which is the host.
const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed,
                                    const at::Tensor& step, uint64_t offset = 0);

}  // namespace mantissa
