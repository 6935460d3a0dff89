#pragma once

// Partitions work into parts for threads.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "mantissa/core/parallel_internal.h"
#include "mantissa/kernels/element.h"

namespace mantissa::kernels::cpu {

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
inline int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// Returns `data` moved by a number of elements. `data` is void* or const void*.
template <typename Pointer>
Pointer advanced(Pointer data, Element element, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return static_cast<Byte*>(data) + elements * element_size(element);
}

/// Returns the number of threads for `products` multiplications. Waking a thread costs some microseconds, so
/// each thread should have about five microseconds of work.
inline int64_t threads_for(int64_t products) {
  constexpr int64_t kProductsPerThread = int64_t{1} << 18;
  const int64_t worth = std::max<int64_t>(1, products / kProductsPerThread);
  return at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), worth);
}

}  // namespace mantissa::kernels::cpu
