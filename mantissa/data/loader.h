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

/// Batches, epoch after epoch: what a training loop reads. Protocol: (set_epoch next* )*; next() returns
/// nothing once the epoch is over and stays so until the next set_epoch(). Before the first set_epoch() it is
/// epoch 0.
///
/// A batch stays valid while the next one is fetched: loops look one batch ahead.
/// Threads: one at a time.
class Loader {
 public:
  virtual ~Loader() = default;
  /// Goes to the beginning of an epoch, whatever was read before; equal numbers give equal epochs.
  virtual void set_epoch(int64_t epoch) = 0;
  virtual std::optional<Batch> next() = 0;
  /// As if next() had been called so often in this epoch: where a run that was resumed goes on. By default it
  /// is.
  virtual void skip(int64_t batches) {
    for (int64_t i = 0; i < batches && next(); ++i) continue;
  }
  /// Batches in an epoch.
  virtual int64_t size() const = 0;
};

struct DataLoaderOptions {
  /// Samples in a batch; the last one of an epoch may be smaller.
  int64_t batch_size = 32;
  /// A new order in every epoch, instead of the dataset's own.
  bool shuffle = false;
  /// Gives the order of every epoch, with `shuffle` or `replacement`, and the random numbers of `transform`.
  uint64_t seed = 0;
  /// Leaves out a last batch that is not full.
  bool drop_last = false;
  /// Samples in an epoch; 0 for all of the dataset.
  int64_t num_samples = 0;
  /// Draws every sample from the whole dataset, so that one may come twice and `num_samples` may exceed its
  /// size.
  bool replacement = false;
  /// Threads that read ahead; 0: next() reads in the calling thread. The batches are the same, bit for bit,
  /// whatever the number.
  int64_t num_workers = 0;
  /// Batches that each of them reads ahead.
  int64_t prefetch_factor = 2;
  /// What each batch goes through.
  Transform transform = {};
};

/// Reads a dataset batch by batch, in an order that seed and epoch alone decide.
///
/// The order of epoch e is torch.randperm(size) from a generator seeded with seed + e, cut after num_samples;
/// with replacement, torch.randint(size, (num_samples,)) from that generator. Bit for bit what Python draws;
/// the global generator is never touched.
///
/// Workers begin at the first next() after a set_epoch() or skip(), where the calling thread's grad mode,
/// autocast and inference mode become theirs, and end with the epoch. They compute with one libtorch thread
/// each. What they have read ahead counts as not read: a run that is resumed gets it again. set_epoch(),
/// skip() and the destructor drop it, and wait for the batches that are being read; until the next next()
/// nothing reads the dataset.
/// Memory:  8 bytes for each sample of an epoch; num_workers * prefetch_factor batches.
/// Threads: with several workers, dataset and transform are called from several at once.
/// Errors:  c10::ValueError for a batch size below 1, a negative num_samples or num_workers, a
///          prefetch_factor below 1, an empty dataset, num_samples above the size without replacement, and
///          drop_last when that leaves no batch. What dataset or transform throw for a batch comes out of the
///          next() that would have given it, and the one after that gives the batch behind it: a c10::Error
///          with a line that names epoch, batch and samples; anything else nested in such a c10::Error
///          (std::rethrow_if_nested). c10::Error from next() if the system gives no thread.
/// Example: loader_test.cpp, DataLoader.ShufflesAsPythonDoes.
class DataLoader final : public Loader {
 public:
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options = {});
  ~DataLoader() override;
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  void set_epoch(int64_t epoch) override;
  std::optional<Batch> next() override;
  /// Without reading a sample.
  void skip(int64_t batches) override;
  int64_t size() const override;
  const DataLoaderOptions& options() const { return options_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  int64_t samples_ = 0, position_ = 0;         ///< samples of an epoch; batches that were handed out
  std::function<Batch(int64_t number)> read_;  ///< a batch of this epoch; empty before the first one
  std::unique_ptr<BatchWorkers> workers_;
};

/// Reads a dataset in an order that is given: for comparing runs with another program's.
class OrderedLoader final : public Loader {
 public:
  /// Shape of `order`: int64 [batches, batch_size]; every epoch is the same.
  /// Errors: c10::ValueError for other shapes and dtypes, no batches, or an index that the dataset does not
  /// have.
  OrderedLoader(std::shared_ptr<const Dataset> dataset, const at::Tensor& order);
  void set_epoch(int64_t epoch) override;
  std::optional<Batch> next() override;
  /// Without reading a sample.
  void skip(int64_t batches) override;
  int64_t size() const override { return order_.size(0); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  at::Tensor order_;
  int64_t position_ = 0;
};

}  // namespace mantissa
