#include <algorithm>
#include <omp.h>
#include <system_error>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "mantissa/core/thread_warnings.h"
#include "mantissa/data/batch_workers_internal.h"

// The function of the MKL inside libtorch, if there is one. at::set_num_threads() also applies to new
// threads, and MKL would then prefer its number to OpenMP's.
extern "C" [[gnu::weak]] int MKL_Set_Num_Threads_Local(int threads);

namespace mantissa {
namespace {

/// Limits the calling thread only; at::set_num_threads() would apply to all threads that start after it.
void use_one_thread() {
  // Run libtorch's lazy initialisation now; at the first operation it would undo the limits. The first call
  // runs our copy of it, the second libtorch's own.
  at::internal::lazy_init_num_threads();
  at::get_num_threads();
  omp_set_num_threads(1);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(1);
}

}  // namespace

BatchWorkers::BatchWorkers(Read read, int64_t first, int64_t end, int64_t num_workers,
                           int64_t prefetch_factor)
    : read_(std::move(read)), end_(end), taken_(first), claimed_(first) {
  const int64_t batches = end - first, workers = std::min(num_workers, batches);
  // Avoids the product, which overflows for a factor near 2^63.
  const int64_t ahead = prefetch_factor > batches / num_workers ? batches : num_workers * prefetch_factor;
  slots_.resize(static_cast<size_t>(ahead));
  try {
    while (std::ssize(threads_) < workers) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    stop();
    TORCH_CHECK(false, "DataLoader: cannot start worker ", threads_.size() + 1, " of ", workers, ": ",
                error.code().message(), "; lower num_workers");
  } catch (...) {
    stop();
    throw;
  }
}

BatchWorkers::~BatchWorkers() { stop(); }

void BatchWorkers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Batch BatchWorkers::next() {
  Slot taken;
  {
    std::unique_lock lock(mutex_);
    Slot& slot = slot_of(taken_);
    ready_.wait(lock, [&] { return slot.batch || slot.error; });
    taken = std::exchange(slot, {});
    ++taken_;
  }
  room_.notify_one();
  if (taken.error) std::rethrow_exception(std::move(taken.error));
  return *std::move(taken.batch);
}

BatchWorkers::Slot BatchWorkers::read(int64_t number) const {
  try {
    return {read_(number), nullptr};
  } catch (...) {
    return {std::nullopt, std::current_exception()};
  }
}

void BatchWorkers::run() {
  use_thread_warning_handler();
  use_one_thread();
  const at::ThreadLocalStateGuard as_the_caller(state_);
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [&] { return stop_ || claimed_ == end_ || claimed_ - taken_ < std::ssize(slots_); });
    if (stop_ || claimed_ == end_) return;
    const int64_t number = claimed_++;
    if (claimed_ == end_) room_.notify_all();  // nobody has to wait any more
    lock.unlock();
    Slot slot = read(number);
    lock.lock();
    slot_of(number) = std::move(slot);
    if (number == taken_) ready_.notify_one();
  }
}

}  // namespace mantissa
