#include <cstdlib>
#include <memory>
#include <new>

#include "mantissa/kernels/scratch_internal.h"

namespace mantissa {

void* thread_scratch(int64_t bytes) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<void, Free> memory;
  thread_local int64_t capacity = 0;
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    const int64_t lines = (bytes + 63) / 64 * 64;
    memory.reset(std::aligned_alloc(64, static_cast<size_t>(lines)));
    if (!memory) throw std::bad_alloc();
    capacity = lines;
  }
  return memory.get();
}

}  // namespace mantissa
