#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "mantissa/data/batch.h"

namespace mantissa {

/// Samples by number, handed out a batch at a time. The interface that loaders read.
///
/// Threads: get_batch() may be called from several at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// How many samples there are.
  virtual int64_t size() const = 0;
  /// The samples of these numbers, in this order; a number may come twice. Shape of `indices`: [n], int64 on
  /// the CPU.
  /// Errors: c10::ValueError for other shapes and dtypes and for a number outside 0..size()-1.
  virtual Batch get_batch(const at::Tensor& indices) const = 0;
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

/// Some samples of another dataset, in an order of their own.
class Subset final : public Dataset {
 public:
  /// Shape of `indices`: [n], int64.
  /// Errors: c10::ValueError for a number that `dataset` does not have.
  Subset(std::shared_ptr<const Dataset> dataset, const at::Tensor& indices);
  int64_t size() const override { return indices_.size(0); }
  Batch get_batch(const at::Tensor& indices) const override;
  const at::Tensor& indices() const { return indices_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  at::Tensor indices_;
};

/// Splits off a held-out part at random: {train, held out}. The held-out part has round(size * fraction)
/// samples, the last of torch.randperm(size) drawn from a generator that was seeded with `seed`, as Python's
/// random_split() would take them.
/// Errors: c10::ValueError if the fraction is not between 0 and 1 or leaves
/// either part empty.
std::pair<std::shared_ptr<const Dataset>, std::shared_ptr<const Dataset>> random_split(
    const std::shared_ptr<const Dataset>& dataset, double held_out_fraction, uint64_t seed);

/// How many of `size` samples are held out.
/// Errors: those of random_split(); `what` begins the message.
int64_t held_out_size(int64_t size, double held_out_fraction, const char* what);

/// For implementers of Dataset::get_batch().
/// Errors: c10::ValueError as stated there; `what` begins the
/// message.
void check_indices(const at::Tensor& indices, int64_t size, const char* what);

}  // namespace mantissa
