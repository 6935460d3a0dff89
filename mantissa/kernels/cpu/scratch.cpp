#include <cstdlib>
#include <memory>
#include <new>

#include "mantissa/kernels/cpu/scratch_internal.h"

namespace mantissa::kernels::cpu {
namespace {

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};

struct Scratch {
  std::unique_ptr<float, Free> memory;
  int64_t capacity = 0;

  float* at_least(int64_t floats) {
    if (floats <= capacity) return memory.get();
    memory.reset();
    capacity = 0;
    const int64_t lines = (floats + 15) / 16;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(lines) * 64)));
    if (!memory) throw std::bad_alloc();
    capacity = lines * 16;
    return memory.get();
  }
};

}  // namespace

float* thread_scratch(int64_t floats) {
  thread_local Scratch scratch;
  return scratch.at_least(floats);
}

float* shared_scratch(int64_t floats) {
  thread_local Scratch scratch;
  return scratch.at_least(floats);
}

}  // namespace mantissa::kernels::cpu
