#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "mantissa/data/batch.h"

namespace mantissa {

/// The most classes that the labels in a file of numbers may have. A column with more different values is taken for
/// an id or a quantity.
inline constexpr int64_t kMaxClasses = 65536;

/// A numbered collection of samples, which returns them in batches. This is the interface that loaders read.
///
/// Threads: several threads may call get_batch() at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Returns the number of samples.
  virtual int64_t size() const = 0;
  /// Returns the samples with these numbers, in this order; a number may occur twice. Shape of `indices`:
  /// [n], int64 on the CPU.
  /// Errors: c10::ValueError for other shapes and dtypes and for a number outside 0..size()-1.
  virtual Batch get_batch(const at::Tensor& indices) const = 0;
  /// Returns the samples as get_batch() does, for a dataset that changes them at random, for example by cropping
  /// images. All random numbers are drawn from `generator`, which belongs to the batch (see Transform). Other
  /// datasets need not override this function.
  virtual Batch draw_batch(const at::Tensor& indices, const at::Generator& /*generator*/) const {
    return get_batch(indices);
  }
};

/// Samples held in memory as one tensor of inputs and one of targets.
class TensorDataset final : public Dataset {
 public:
  /// Shapes: `data` [n, ...], `target` [n, ...] or undefined.
  /// Errors: c10::ValueError if the two differ in n or `data` has no dimensions.
  explicit TensorDataset(at::Tensor data, at::Tensor target = {});
  int64_t size() const override { return data_.size(0); }
  Batch get_batch(const at::Tensor& indices) const override;
  const at::Tensor& data() const { return data_; }
  const at::Tensor& target() const { return target_; }

 private:
  at::Tensor data_, target_;
};

/// Some samples of another dataset, in any order.
class Subset final : public Dataset {
 public:
  /// Shape of `indices`: [n], int64.
  /// Errors: c10::ValueError for a number that `dataset` does not have.
  Subset(std::shared_ptr<const Dataset> dataset, const at::Tensor& indices);
  int64_t size() const override { return indices_.size(0); }
  Batch get_batch(const at::Tensor& indices) const override;
  Batch draw_batch(const at::Tensor& indices, const at::Generator& generator) const override;
  const at::Tensor& indices() const { return indices_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  at::Tensor indices_;
};

/// Splits a dataset at random into a training part and a held-out part, and returns both in this order. The
/// held-out part has round(size * fraction) samples: the last ones of torch.randperm(size) from a generator seeded
/// with `seed`, as in Python's random_split().
/// Errors: c10::ValueError if the fraction is not between 0 and 1 or leaves either part empty.
std::pair<std::shared_ptr<const Dataset>, std::shared_ptr<const Dataset>> random_split(
    const std::shared_ptr<const Dataset>& dataset, double held_out_fraction, uint64_t seed);

/// Returns how many of `size` samples are held out.
/// Errors: those of random_split(). The message begins with `what`.
int64_t held_out_size(int64_t size, double held_out_fraction, const char* what);

/// Throws what get_batch() has to throw for bad `indices`. Call it in an implementation of get_batch().
/// Errors: those of get_batch(). The message begins with `what`.
void check_indices(const at::Tensor& indices, int64_t size, const char* what);

}  // namespace mantissa
