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

/// Threads that read the batches of an epoch, or of what is left of it, ahead of the one who uses them.
///
/// Each thread computes with one libtorch thread, and with the grad mode, autocast and so on that the thread
/// has that makes this. It ends when there is nothing left to read.
/// Memory:  at most num_workers * prefetch_factor batches, those that are being read included.
/// Threads: `read` is called from all of them at once; everything else is for one thread.
class BatchWorkers {
 public:
  /// Reads the batch of this number.
  using Read = std::function<Batch(int64_t number)>;

  /// For the batches from `first` to `end` - 1. The counts must be at least 1.
  /// Errors: c10::Error if the system gives no thread.
  BatchWorkers(Read read, int64_t first, int64_t end, int64_t num_workers, int64_t prefetch_factor);
  /// Drops what was read ahead; waits for the calls of `read` that have begun.
  ~BatchWorkers();
  BatchWorkers(const BatchWorkers&) = delete;
  BatchWorkers& operator=(const BatchWorkers&) = delete;

  /// The next batch in order, for which it waits; to be called end - first times.
  /// Errors: what `read` threw for this batch. The next call gives the batch behind it.
  Batch next();

 private:
  /// A batch that has been read, or why it could not be; neither before that.
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
  std::vector<Slot> slots_;  ///< of the batches from taken_ on
  int64_t taken_, claimed_;  ///< the first numbers that were not handed out, and not begun
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace mantissa
