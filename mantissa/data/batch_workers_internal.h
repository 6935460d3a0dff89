#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/ThreadLocalState.h>

#include "mantissa/data/batch.h"

namespace mantissa {

/// Threads that read the batches of an epoch, or of the rest of it, ahead of the consumer.
///
/// Each thread computes with one libtorch thread, and takes over grad mode, autocast and so on from the
/// thread that makes this object. It ends when nothing is left to read.
/// Memory:  at most num_workers * prefetch_factor batches, including those that are being read.
/// Threads: all workers call `read` at once; everything else is for one thread.
class BatchWorkers {
 public:
  /// Reads the batch with this number.
  using Read = std::function<Batch(int64_t number)>;

  /// Reads the batches from `first` to `end` - 1. The counts must be at least 1.
  /// Errors: c10::Error if the system cannot start a thread.
  BatchWorkers(Read read, int64_t first, int64_t end, int64_t num_workers, int64_t prefetch_factor);
  /// Drops the batches that were read ahead; waits for the running calls of `read`.
  ~BatchWorkers();
  BatchWorkers(const BatchWorkers&) = delete;
  BatchWorkers& operator=(const BatchWorkers&) = delete;

  /// Waits for the next batch in order and returns it; to be called end - first times.
  /// Errors: those of `read` for this batch. The next call returns the batch after it.
  Batch next();

 private:
  /// A batch that has been read, or the error of reading it; neither before that.
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  void run();
  void stop();
  Slot read(int64_t number) const;
  Slot& slot_of(int64_t number) { return slots_[static_cast<size_t>(number) % slots_.size()]; }

  const Read read_;
  const int64_t end_;
  const at::ThreadLocalState state_;

  std::mutex mutex_;
  std::condition_variable room_, ready_;
  std::vector<Slot> slots_;  ///< the batches from taken_ on
  int64_t taken_, claimed_;  ///< the first batch not yet returned, and the first not yet begun
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace mantissa
