#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "mantissa/data/batch.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/transform.h"

namespace mantissa {

class BatchWorkers;

/// Batches, epoch after epoch, for a training loop. Protocol: (set_epoch next* )*. next() returns nothing
/// once the epoch is over, until the next set_epoch(). Before the first set_epoch() the epoch is 0.
///
/// A batch stays valid while the next one is fetched, because loops look one batch ahead.
/// Threads: one at a time.
class Loader {
 public:
  virtual ~Loader() = default;
  /// Goes to the beginning of an epoch, whatever was read before. Equal numbers give equal epochs.
  virtual void set_epoch(int64_t epoch) = 0;
  virtual std::optional<Batch> next() = 0;
  /// Skips batches of this epoch, as if next() had been called that often: a resumed run continues there. The
  /// default does call next().
  virtual void skip(int64_t batches) {
    for (int64_t i = 0; i < batches && next(); ++i) continue;
  }
  /// Returns the number of batches in an epoch.
  virtual int64_t size() const = 0;
};

struct DataLoaderOptions {
  /// Samples in a batch; the last one of an epoch may be smaller.
  int64_t batch_size = 32;
  /// Draws a new order for every epoch, instead of using the dataset's own.
  bool shuffle = false;
  /// Determines the order of every epoch, with `shuffle` or `replacement`, and the random numbers of the
  /// dataset and of `transform`.
  uint64_t seed = 0;
  /// Leaves out the last batch if it is not full.
  bool drop_last = false;
  /// Samples in an epoch; 0 for all of the dataset.
  int64_t num_samples = 0;
  /// Draws every sample from the whole dataset, so that one may occur twice and `num_samples` may exceed the
  /// dataset's size.
  bool replacement = false;
  /// The number of threads that read ahead; 0: next() reads in the calling thread. The batches do not depend
  /// on it, bit for bit.
  int64_t num_workers = 0;
  /// The number of batches that each of them reads ahead.
  int64_t prefetch_factor = 2;
  /// Applied to each batch.
  Transform transform = {};
};

/// Reads a dataset batch by batch, in an order that depends only on seed and epoch.
///
/// The order of epoch e is torch.randperm(size) from a generator seeded with seed + e, cut after num_samples;
/// with replacement, torch.randint(size, (num_samples,)) from that generator. It equals Python's, bit for
/// bit; the global generator is never touched.
///
/// Workers start at the first next() after a set_epoch() or skip(), take over the calling thread's grad mode,
/// autocast and inference mode, and end with the epoch. Each computes with one libtorch thread. Batches that
/// were read ahead count as not read: a resumed run gets them again. set_epoch(), skip() and the destructor
/// wait for the batches that are being read and drop all of them. Nothing reads the dataset from then until
/// next() is called.
/// Memory:  8 bytes for each sample of an epoch; num_workers * prefetch_factor batches.
/// Threads: with several workers, several threads call dataset and transform at once.
/// Errors:  c10::ValueError for a batch size below 1, a negative num_samples or num_workers, a
///          prefetch_factor below 1, an empty dataset, num_samples above the size without replacement, and
///          drop_last if it leaves no batch. An exception of dataset or transform comes out of the next() for
///          that batch; the call after it returns the following batch. A c10::Error gets a line that names
///          epoch, batch and samples; any other exception is nested in such a c10::Error
///          (std::rethrow_if_nested). c10::Error from next() if the system cannot start a thread.
/// Example: loader_test.cpp, DataLoader.ShufflesAsPythonDoes.
class DataLoader final : public Loader {
 public:
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options = {});
  ~DataLoader() override;
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  void set_epoch(int64_t epoch) override;
  std::optional<Batch> next() override;
  /// Reads no sample.
  void skip(int64_t batches) override;
  int64_t size() const override;
  const DataLoaderOptions& options() const { return options_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  int64_t samples_ = 0, position_ = 0;         ///< samples of an epoch; batches that were returned
  std::function<Batch(int64_t number)> read_;  ///< reads a batch of this epoch; empty before the first one
  std::unique_ptr<BatchWorkers> workers_;
};

/// Reads a dataset in a given order, to compare runs with another program's.
class OrderedLoader final : public Loader {
 public:
  /// Shape of `order`: int64 [batches, batch_size]; every epoch is the same.
  /// Errors: c10::ValueError for other shapes and dtypes, no batches, or an index that the dataset does not
  /// have.
  OrderedLoader(std::shared_ptr<const Dataset> dataset, const at::Tensor& order);
  void set_epoch(int64_t epoch) override;
  std::optional<Batch> next() override;
  /// Reads no sample.
  void skip(int64_t batches) override;
  int64_t size() const override { return order_.size(0); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  at::Tensor order_;
  int64_t position_ = 0;
};

}  // namespace mantissa
