#pragma once

#include <cstdint>

namespace mantissa::kernels::cpu {

/// Returns this thread's scratch memory for kernels: at least `floats` floats, 64-byte aligned and undefined.
/// The next call may move it. It grows with the largest request and is kept until the thread ends.
///
/// Errors: std::bad_alloc.
float* thread_scratch(int64_t floats);

/// Returns separate scratch memory, which this thread shares with the threads that work for it.
float* shared_scratch(int64_t floats);

}  // namespace mantissa::kernels::cpu
