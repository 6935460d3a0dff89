#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Generator.h>

#include "mantissa/data/batch.h"

namespace mantissa {

/// A function that is applied to a batch between the dataset and training, in the thread that reads it:
/// augmentation, padding, mixing of samples (PyTorch: a dataset's transform, and collate_fn).
///
/// `generator` belongs to the batch: its numbers depend only on the loader's seed, the epoch and the batch's
/// number, whichever thread reads the batch and in whichever order.
/// Numerics: give new tensors an explicit dtype, as in at::rand({n}, generator, at::kFloat). The default
///           dtype belongs to the whole process, and a training step of "16-true" changes it while workers
///           read.
/// Threads:  several threads call it at once, so numbers of the global generator would come in any order.
using Transform = std::function<Batch(Batch batch, const at::Generator& generator)>;

/// Combines samples into one batch: every tensor gets a first dimension (PyTorch: default_collate).
/// Errors: c10::ValueError, naming sample and tensor, for an empty list, for a tensor that only some samples
///         have, and for different shapes.
Batch stack(const std::vector<Batch>& samples);

/// Returns a transform that calls `transform` with one sample at a time, whose tensors have no first
/// dimension, and stacks the results. All samples of a batch draw from its generator, in turn.
/// Errors:  c10::ValueError if `transform` is empty; those of stack().
/// Example: transform_test.cpp, PerSample.FlipsSomeOfThem.
Transform per_sample(Transform transform);

}  // namespace mantissa
