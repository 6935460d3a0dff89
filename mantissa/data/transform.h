#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Generator.h>

#include "mantissa/data/batch.h"

namespace mantissa {

/// What a batch goes through between the dataset and training, in the thread that reads it: augmentation,
/// padding, mixing of samples (PyTorch: a dataset's transform, and collate_fn).
///
/// `generator` is the batch's own: what is drawn from it depends on the loader's seed, the epoch and the
/// batch's number alone, whichever thread reads the batch, and in which order.
/// Numerics: give new tensors their dtype, as in at::rand({n}, generator, at::kFloat). The default dtype is
///           one for the whole process, and a training step of "16-true" changes it while workers read (spec
///           IN-4).
/// Threads:  called from several at once; the global generator's numbers would come in any order.
using Transform = std::function<Batch(Batch batch, const at::Generator& generator)>;

/// The samples as one batch: every tensor gets a first dimension (PyTorch: default_collate).
/// Errors: c10::ValueError, naming sample and tensor, for no samples, for a tensor that some have and some
///         have not, and for shapes that differ.
Batch stack(const std::vector<Batch>& samples);

/// Gives `transform` one sample at a time, its tensors without their first dimension, and stacks what comes
/// back. All samples of a batch draw from its generator, in turn.
/// Errors:  c10::ValueError if `transform` is empty; those of stack().
/// Example: transform_test.cpp, PerSample.FlipsSomeOfThem.
Transform per_sample(Transform transform);

}  // namespace mantissa
