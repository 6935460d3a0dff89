#include <cstdlib>
#include <memory>
#include <new>

#include "mantissa/kernels/scratch_internal.h"

namespace mantissa {

float* thread_scratch(int64_t floats) {
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t capacity = 0;
  if (floats > capacity) {
    memory.reset();
    capacity = 0;
    const int64_t lines = (floats + 15) / 16;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(lines) * 64)));
    if (!memory) throw std::bad_alloc();
    capacity = lines * 16;
  }
  return memory.get();
}

}  // namespace mantissa
